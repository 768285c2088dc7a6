"""`digits`: the built-in default, scikit-learn's 1,797 handwritten digits. Nothing is downloaded."""

from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from sora.data._base import register
from sora.data.dataset import Dataset, ImageSet
from sora.data.splits import divide

_TEST, _VAL = 360, 180


@register(
    "digits",
    summary="scikit-learn's handwritten digits, 16x16 grey, 10 classes; built in",
    counts={"train": 1_257, "val": _VAL, "test": _TEST},
)
def load(root: Path) -> Dataset:
    """Resize bilinearly from 8x8 to 16x16, scale 0-16 to 0-255, split by class in a fixed way."""
    from sklearn.datasets import load_digits  # here, as it takes a second to import

    source = load_digits()
    labels = torch.from_numpy(source.target.astype(np.int64))
    small = torch.from_numpy(source.images).float()[:, None] * (255 / 16)
    large = F.interpolate(small, size=(16, 16), mode="bilinear", align_corners=False)
    everything = ImageSet(large.round().to(torch.uint8).permute(0, 2, 3, 1).contiguous(), labels)

    test, rest = divide(everything, _TEST)
    val, train = divide(rest, _VAL)
    return Dataset("digits", train, test, val, tuple(str(digit) for digit in range(10)))
