"""What several architectures share: normalisation, stages of residual blocks, and the check of a size."""

import math
from collections.abc import Callable, Sequence
from numbers import Integral

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sora.errors import UserError, short

Block = Callable[[int, int, int], nn.Module]
"""(channels in, channels out, stride of the first convolution) -> block."""


def check_int(what: str, value: object, low: int = 1, high: int | None = None) -> None:
    """Refuse anything but an integer from `low` to `high`."""
    integer = isinstance(value, Integral) and not isinstance(value, bool)
    if integer and low <= value and (high is None or value <= high):  # type: ignore[operator]
        return
    allowed = f"from {low} to {high}" if high is not None else f">= {low}"
    raise UserError(f"{what} must be an integer {allowed}, not {value!r}")


class Normalize(nn.Module):
    """`(x - mean) / std` per channel, the first layer of a model: pixels are in [0, 1] everywhere else.

    Both are buffers: saved and moved with the model, never trained.
    """

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
    """Return one float per channel, from None (the default), one number (the same for all), or all."""
    try:
        numbers = [default] if values is None else [float(v) for v in values]
    except (TypeError, ValueError):
        raise UserError(f"{what} is {short(values)}; expected a list of numbers") from None
    if len(numbers) == 1:
        return numbers * channels
    if len(numbers) != channels:
        raise UserError(f"{what} needs 1 number or one for each of {channels} channel(s), got {len(numbers)}")
    return numbers


def conv3x3(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    """Build a 3x3 convolution that keeps the map's size at stride 1."""
    return nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)


def average(maps: Tensor) -> Tensor:
    """Average over each map, (B, C, H, W) to (B, C); the gradient keeps the memory order of the maps."""
    return F.avg_pool2d(maps, maps.shape[-2:]).flatten(1)


class Projection(nn.Conv2d):
    """The 1x1 convolution on a shortcut whose shape changes.

    It selects every `step`-th pixel first and then convolves at stride 1. The sums are those of a strided
    convolution, whose weight gradient oneDNN (its issue 6035) computes out of bounds on channels-last maps
    of fewer than 16 channels. The pixels are selected by a pool of one pixel, not by a slice: the gradient of
    a slice is in NCHW, and every earlier layer would then have to convert between two layouts.
    """

    def __init__(self, in_channels: int, out_channels: int, step: int) -> None:
        super().__init__(in_channels, out_channels, 1, bias=False)
        self.step = step

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, C', H / step, W / step), rounded up."""
        return super().forward(F.avg_pool2d(x, 1, self.step))


def build_stages(block: Block, in_channels: int, width: int, stages: int, blocks: int = 2) -> nn.Sequential:
    """Build stages of `blocks` blocks; each after the first doubles the channels and halves the map."""
    result = nn.Sequential()
    for stage in range(stages):
        out_channels = width << stage
        stride = 1 if stage == 0 else 2
        first = block(in_channels, out_channels, stride)
        rest = [block(out_channels, out_channels, 1) for _ in range(blocks - 1)]
        result.append(nn.Sequential(first, *rest))
        in_channels = out_channels
    return result
