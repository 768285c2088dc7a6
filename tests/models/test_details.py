"""Details of the architectures that their definitions (test_definitions.py) do not fix."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sora.models import create
from sora.models._layers import Projection
from sora.models.preactresnet import PreActBlock


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("size", [7, 8])
@pytest.mark.parametrize("step", [1, 2])
def test_a_projection_equals_a_strided_convolution(step: int, size: int) -> None:
    projection = Projection(4, 8, step).double()
    x = torch.rand(2, 4, size, size, dtype=torch.float64)
    assert torch.allclose(projection(x), F.conv2d(x, projection.weight, stride=step), atol=1e-12)


def test_a_projection_of_few_channels_in_channels_last_keeps_to_its_memory() -> None:
    # As a strided convolution this weight gradient crashes the process (torch 2.13, CPU).
    projection = Projection(4, 8, 2)
    x = torch.rand(8, 4, 224, 224).to(memory_format=torch.channels_last)
    projection(x).sum().backward()
    expected = x[:, :, ::2, ::2].sum((0, 2, 3)).expand(8, 4)
    assert projection.weight.grad is not None
    assert torch.allclose(projection.weight.grad.view(8, 4), expected, rtol=1e-3)


def test_wide_stem_dropout_and_widen() -> None:
    with torch.device("meta"):
        network: Any = create("wideresnet28-10", 10).network
        narrow: Any = create("wideresnet28-10", 10, width=8).network
        by_factor, by_width = (
            create("wideresnet28-10", 10, **size) for size in ({"widen": 2}, {"width": 32})
        )
    assert {m.p for m in network.modules() if isinstance(m, nn.Dropout)} == {0.3}
    assert narrow.stem.out_channels == 8
    assert str(by_factor) == str(by_width)


def test_dropout_is_between_the_second_relu_and_the_second_convolution() -> None:
    block = PreActBlock(8, 8, 1, dropout=0.5)
    seen: list[Tensor] = []
    block.dropout.register_forward_pre_hook(lambda _m, inputs: seen.append(inputs[0]))
    block.conv2.register_forward_pre_hook(lambda _m, inputs: seen.append(inputs[0]))
    block(torch.randn(4, 8, 6, 6))
    active, dropped = seen
    assert active.min() == 0  # it comes from a ReLU
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], 2 * active[kept])
    assert 0.4 < kept.sum() / (active > 0).sum() < 0.6


@pytest.mark.parametrize("name", ["preactresnet18", "resnet18", "senet18"])
def test_default_initialisation_of_convolutions(name: str) -> None:
    for module in create(name, 10, width=16).modules():
        if isinstance(module, nn.Conv2d) and module.bias is None:
            bound = module.weight[0].numel() ** -0.5
            assert module.weight.abs().max() <= bound
            assert module.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.15)


def test_wide_initialisation_is_kaiming_normal_fan_out() -> None:
    network: Any = create("wideresnet28-10", 10, width=32, depth=10).network
    for module in network.modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 4000:
            expected = (2 / (module.out_channels * module.weight[0, 0].numel())) ** 0.5
            assert module.weight.std().item() == pytest.approx(expected, rel=0.1)
        if isinstance(module, nn.BatchNorm2d):
            assert module.weight.eq(1).all()
            assert module.bias.eq(0).all()
    assert network.head.bias.eq(0).all()


def test_vit_has_six_heads_no_dropout_and_its_initialisation() -> None:
    with torch.device("meta"):
        network: Any = create("vit-small", 10).network
    assert {(block.attention.heads, block.attention.scale) for block in network.blocks} == {(6, 1 / 8)}
    assert {m.eps for m in network.modules() if isinstance(m, nn.LayerNorm)} == {1e-6}
    assert not any(isinstance(m, nn.Dropout) for m in network.modules())
    network: Any = create("vit-small", 10, width=96, depth=1).network
    for module in network.modules():
        if isinstance(module, nn.Linear):
            assert module.weight.std().item() == pytest.approx(0.02, rel=0.1)
            assert module.bias.eq(0).all()
    assert network.position.std().item() == pytest.approx(0.02, rel=0.1)
    assert network.class_token.std().item() == pytest.approx(0.02, rel=0.3)
