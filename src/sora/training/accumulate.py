"""One weight update's gradients from a batch in parts, for batches that do not fit into memory at once.

Each part is a step of its own to the method: SORA's coefficient moves once per part. Losses are weighted by
the parts' sizes, so the gradients add up to those of the batch's mean loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sora.data import Batch
from sora.methods import StepOutput

NUMBERS = ("loss", "accuracy", "pert_align", "linearity", "step_size")


def step_in_parts(
    step: Callable[..., StepOutput],
    model: nn.Module,
    batch: Batch,
    parts: int,
    loss_scale: Tensor | None,
) -> StepOutput:
    """Take `step` on each part; the numbers averaged over the batch, images and logits of the last part."""
    total = len(batch.y)
    slices = list(_slices(total, parts))
    weights = [(share.stop - share.start) / total for share in slices]
    outs = []
    for share, weight in zip(slices, weights, strict=True):
        scale = loss_scale if weight == 1 else weight if loss_scale is None else weight * loss_scale
        # DDP reduces once, with the last part's backward.
        waits = isinstance(model, DistributedDataParallel) and share is not slices[-1]
        with model.no_sync() if waits else nullcontext():  # type: ignore[operator]
            out = step(
                model,
                batch.x[share],
                batch.y[share],
                index=batch.index[share],
                transform=None if batch.transform is None else batch.transform[share],
                loss_scale=scale,
            )
        outs.append(out)
    return outs[0] if len(outs) == 1 else _average(outs, weights)


def _average(outs: list[StepOutput], weights: list[float]) -> StepOutput:
    def mean(values: list[Tensor]) -> Tensor:
        return torch.stack([weight * value for weight, value in zip(weights, values, strict=True)]).sum(0)

    numbers = {name: mean([getattr(out, name) for out in outs]) for name in NUMBERS}
    extras = {name: mean([out.extras[name] for out in outs]) for name in outs[-1].extras}
    return outs[-1]._replace(**numbers, extras=extras)


def _slices(total: int, parts: int) -> Iterator[slice]:
    """Equal parts as far as possible; none of a single image, which BatchNorm cannot train on."""
    parts = max(1, min(parts, total // 2))
    for part in range(parts):
        yield slice(total * part // parts, total * (part + 1) // parts)
