"""The embedded default: scikit-learn's 1,797 handwritten digits, nothing to fetch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from sora._seeds import mix
from sora.data._store import SPLIT_SEED, Dataset, ImageSet, stratified

TEST, VAL = 360, 180
COUNTS = {"train": 1_257, "val": VAL, "test": TEST}


def load(root: Path | None = None) -> Dataset:
    """Bilinear from 8x8 to 16x16, values 0-16 scaled to 0-255, a fixed stratified split."""
    from sklearn.datasets import load_digits  # here, as it takes a second to import

    source = load_digits()
    labels = torch.from_numpy(source.target.astype(np.int64))
    small = torch.from_numpy(source.images).float()[:, None] * (255 / 16)
    large = F.interpolate(small, size=(16, 16), mode="bilinear", align_corners=False)
    everything = ImageSet(large.round().to(torch.uint8).permute(0, 2, 3, 1).contiguous(), labels)

    test, rest = _cut(everything, TEST)
    val, train = _cut(rest, VAL)
    return Dataset("digits", train, test, val, tuple(str(digit) for digit in range(10)))


def _cut(images: ImageSet, count: int) -> tuple[ImageSet, ImageSet]:
    chosen = stratified(images.labels, count, mix(SPLIT_SEED, count))
    rest = torch.ones(len(images), dtype=torch.bool).index_fill_(0, chosen, False).nonzero()[:, 0]
    return images.subset(chosen), images.subset(rest)
