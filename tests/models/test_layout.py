"""The memory layout of models: faster, and the same function."""

import pytest
import torch
from torch import nn

from sora.models import create, fast_layout, own_layout
from sora.models._layout import WIDE
from sora.training import fit

torch.set_num_threads(1)


def wide() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, WIDE, 3), nn.ReLU(), nn.Conv2d(WIDE, WIDE, 3))


def is_channels_last(weight: torch.Tensor) -> bool:
    return weight.is_contiguous(memory_format=torch.channels_last)


def test_only_wide_convolutions_are_in_nchw_and_no_number_changes_beyond_rounding() -> None:
    model, seen = fast_layout(wide()), list[bool]()
    assert is_channels_last(model[0].weight)
    assert not model[0].weight.is_contiguous()
    assert model[2].weight.is_contiguous()
    model[2].register_forward_hook(lambda module, args, out: seen.append(args[0].is_contiguous()))
    model(torch.rand(2, 3, 8, 8).to(memory_format=torch.channels_last))
    assert seen == [True]
    assert hooks(model) == hooks(fast_layout(model)) == 1  # a second call adds none
    assert model[2].weight.is_contiguous()
    torch.manual_seed(1)
    model = create("preactresnet18", 10, width=32).double()
    x = torch.rand(4, 3, 32, 32, dtype=torch.float64)
    before = model(x)
    torch.testing.assert_close(fast_layout(model)(x), before, rtol=1e-10, atol=1e-10)


def hooks(model: nn.Module) -> int:
    return sum(len(module._forward_pre_hooks) for module in model.modules())


def test_a_borrowed_module_comes_back_as_it_lay_also_after_an_exception() -> None:
    model = wide()
    model[0].to(memory_format=torch.channels_last)  # its owner's choice
    own = model[2].register_forward_pre_hook(lambda module, args: None)
    with pytest.raises(RuntimeError), own_layout(model):
        fast_layout(model)(torch.rand(2, 3, 1, 1))  # smaller than the kernel
    assert list(model[2]._forward_pre_hooks) == [own.id]
    assert is_channels_last(model[0].weight)
    assert model[2].weight.is_contiguous()


def test_fit_hands_the_users_module_back_without_hooks() -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, WIDE, 3, stride=4), nn.Conv2d(WIDE, WIDE, 1), nn.Flatten(), nn.LazyLinear(2)]
    model = nn.Sequential(*layers)
    x = torch.randint(0, 256, (16, 1, 8, 8), dtype=torch.uint8)
    model(x / 255)
    before = model[0].weight.clone()
    pair = (x, torch.arange(16) % 2)
    seen: list[int] = []
    watch = model[1].register_forward_hook(lambda *_: seen.append(hooks(model)))
    fit(model, (pair, pair), epochs=1, batch_size=8, holdout=0, attacks=("clean",), threads=1, quiet=True)
    watch.remove()
    assert seen[-1] == min(seen) == 1  # the layout's; the check of the first batch has one of its own
    assert hooks(model) == 0
    assert not torch.equal(model[0].weight, before)
    assert all(tensor.is_contiguous() for tensor in model.state_dict().values())
