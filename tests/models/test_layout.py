"""The memory layout of networks: faster, and the same function."""

from __future__ import annotations

import torch
from torch import nn

from sora.models import create, fast_layout
from sora.models._layout import WIDE

torch.set_num_threads(1)


def wide() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, WIDE, 3), nn.ReLU(), nn.Conv2d(WIDE, WIDE, 3))


def is_channels_last(weight: torch.Tensor) -> bool:
    return weight.is_contiguous(memory_format=torch.channels_last)


def test_only_wide_convolutions_stay_nchw() -> None:
    model = fast_layout(wide())
    assert is_channels_last(model[0].weight)
    assert not model[0].weight.is_contiguous()
    assert model[2].weight.is_contiguous()


def test_a_wide_convolution_never_sees_channels_last() -> None:
    model = fast_layout(wide())
    model[2].register_forward_hook(lambda module, args, out: seen.append(args[0].is_contiguous()))
    seen: list[bool] = []
    model(torch.rand(2, 3, 8, 8).to(memory_format=torch.channels_last))
    assert seen == [True]


def test_the_layout_changes_no_number_beyond_rounding() -> None:
    torch.manual_seed(1)
    model = create("preactresnet18", 10, width=32).double()
    x = torch.rand(4, 3, 32, 32, dtype=torch.float64)
    before = model(x)
    torch.testing.assert_close(fast_layout(model)(x), before, rtol=1e-10, atol=1e-10)
