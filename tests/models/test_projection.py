"""The shortcut's convolution: the sums of a strided one, without its fault in memory."""

import pytest
import torch
from torch.nn import functional as F

from sora.models._stages import Projection


@pytest.mark.parametrize("size", [7, 8])
@pytest.mark.parametrize("step", [1, 2])
def test_equals_a_strided_convolution(step, size) -> None:
    torch.manual_seed(0)
    projection = Projection(4, 8, step).double()
    x = torch.rand(2, 4, size, size, dtype=torch.float64)
    assert torch.allclose(projection(x), F.conv2d(x, projection.weight, stride=step), atol=1e-12)


def test_few_channels_in_channels_last_keep_to_their_memory() -> None:
    # As a strided convolution this weight gradient crashes the process (torch 2.13, CPU).
    projection = Projection(4, 8, 2)
    x = torch.rand(8, 4, 224, 224).to(memory_format=torch.channels_last)
    projection(x).sum().backward()
    expected = x[:, :, ::2, ::2].sum((0, 2, 3)).expand(8, 4)
    assert torch.allclose(projection.weight.grad.view(8, 4), expected, rtol=1e-3)
