"""Stages of residual blocks, shared by the convolutional networks."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

Block = Callable[[int, int, int], nn.Module]
"""(channels in, channels out, stride of the first convolution) -> block."""


def conv3x3(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    """A 3x3 convolution that keeps the map's size at stride 1."""
    return nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)


def average(maps: Tensor) -> Tensor:
    """The mean over each map, (B, C, H, W) to (B, C); its gradient keeps the memory order of the maps."""
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
        """(B, C, H, W) to (B, C', H / step, W / step), rounded up."""
        return super().forward(F.avg_pool2d(x, 1, self.step))


def build_stages(block: Block, in_channels: int, width: int, stages: int, blocks: int = 2) -> nn.Sequential:
    """Stages of `blocks` blocks each; every stage after the first doubles the channels and halves the map."""
    result = nn.Sequential()
    for stage in range(stages):
        out_channels = width << stage
        stride = 1 if stage == 0 else 2
        first = block(in_channels, out_channels, stride)
        rest = [block(out_channels, out_channels, 1) for _ in range(blocks - 1)]
        result.append(nn.Sequential(first, *rest))
        in_channels = out_channels
    return result
