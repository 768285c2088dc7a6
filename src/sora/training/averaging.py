"""Averaged weights (`--ema`) and the BatchNorm statistics that go with them."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

from sora._seeds import seeded
from sora.data import ImageSet
from sora.evaluation.examples import as_examples, in_precision_of

ESTIMATED_ON = 1024  # training images that statistics are estimated on, at most


def make_average(model: nn.Module, decay: float, buffers: str) -> AveragedModel:
    """Create an average `w_avg = decay w_avg + (1 - decay) w`; the first update copies w.

    Args:
        model: The model that is trained.
        decay: The weight of the old average.
        buffers: `average` treats buffers like weights, truncating whole numbers; otherwise they are copied.
    """
    average = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
    return AveragedModel(model, multi_avg_fn=average, use_buffers=buffers == "average")


def with_estimated_statistics(
    model: nn.Module, images: ImageSet, batch_size: int, device: torch.device
) -> nn.Module:
    """Return a copy whose BatchNorm statistics are means over batches of clean training images.

    A copy, so that checkpoints do not depend on when it was used.

    Args:
        model: The model with averaged weights.
        images: Always the same ones for a data set, so that the result depends on the weights alone.
        batch_size: The largest number of images per batch.
        device: Where to compute.
    """
    model = copy.deepcopy(model)
    examples = in_precision_of(model, as_examples(images))
    count = math.ceil(len(images) / batch_size)
    # Images may be stored class by class, so each batch takes every count-th one. The batches have nearly the
    # same size, as BatchNorm cannot use a batch of one image.
    parts = [torch.arange(first, len(images), count) for first in range(count)]
    with seeded(0):  # for Dropout, which is active here
        update_bn((examples.take(part, device)[0] for part in parts), model)
    return model
