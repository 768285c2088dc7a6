"""Normalisation as a network's first layer, so that all code outside it uses pixels in [0, 1]."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sora.errors import UserError, short


class Normalize(nn.Module):
    """`(x - mean) / std` per channel; both are buffers: saved and moved with the model, never trained."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if len(mean) != len(std):
            raise UserError(f"mean and std need one number per channel, got {len(mean)} and {len(std)}")
        if not all(map(math.isfinite, mean)):
            raise UserError(f"mean must be finite, not {list(mean)}")
        if not all(math.isfinite(s) and s > 0 for s in std):
            raise UserError(f"std must be finite and > 0, not {list(std)}")
        self.register_buffer("mean", torch.tensor(list(mean)).reshape(-1, 1, 1))
        self.register_buffer("std", torch.tensor(list(std)).reshape(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise images of shape (N, C, H, W)."""
        # Broadcasting would silently turn grey images into colour ones. `torch.jit.trace` cannot record the
        # check and would warn about it.
        channels = self.mean.shape[0]
        tracing = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        if not tracing and x.shape[-3] != channels:
            raise UserError(f"this model expects images of {channels} channel(s), got {x.shape[-3]}")
        return (x - self.mean) / self.std


def per_channel(what: str, values: Sequence[float] | None, default: float, channels: int) -> list[float]:
    """One float per channel, from None (the default), one number (the same for all), or all of them."""
    try:
        numbers = [default] if values is None else [float(v) for v in values]
    except (TypeError, ValueError):
        raise UserError(f"{what} is {short(values)}; expected a list of numbers") from None
    if len(numbers) == 1:
        return numbers * channels
    if len(numbers) != channels:
        raise UserError(f"{what} needs 1 number or one for each of {channels} channel(s), got {len(numbers)}")
    return numbers
