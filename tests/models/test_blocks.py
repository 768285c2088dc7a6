"""The details that tell these networks from their look-alikes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sora.models import create
from sora.models.preactresnet import PreActBlock
from sora.models.resnet import BasicBlock
from sora.models.senet import SqueezeExciteBlock
from sora.models.vit import TransformerBlock
from sora.models.wideresnet import WideBlock

Block = Callable[[int, int, int], nn.Module]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("block", [PreActBlock, SqueezeExciteBlock, WideBlock])
def test_zero_last_convolution_leaves_a_preactivation_block_as_identity(block: Block) -> None:
    module: Any = block(8, 8, 1)
    nn.init.zeros_(module.conv2.weight)
    x = torch.randn(2, 8, 6, 6)
    assert torch.equal(module(x), x)


def shortcut_moves(block: nn.Module) -> bool:
    """Whether shifting the first BN's bias changes what the shortcut hands over."""
    parts: Any = block
    x, seen = torch.randn(2, 4, 6, 6), []
    parts.shortcut.register_forward_hook(lambda _module, _inputs, out: seen.append(out.clone()))
    block(x)
    nn.init.constant_(parts.bn1.bias, 1.0)
    block(x)
    return not torch.equal(*seen)


def test_preact_shortcut_reads_the_raw_input_by_default() -> None:
    assert not shortcut_moves(PreActBlock(4, 8, 2))
    network: Any = create("preactresnet18", 10, width=4, stages=2).network
    assert not shortcut_moves(network.stages[1][0])


def test_preact_shortcut_reads_the_activated_input_on_request() -> None:
    network: Any = create("preactresnet18", 10, width=4, stages=2, shortcut_input="activated").network
    assert shortcut_moves(network.stages[1][0])


@pytest.mark.parametrize("block", [SqueezeExciteBlock, WideBlock])
def test_squeeze_excite_and_wide_shortcuts_read_the_activated_input(block: Block) -> None:
    assert shortcut_moves(block(4, 8, 2))


@pytest.mark.parametrize("block", [PreActBlock, BasicBlock, SqueezeExciteBlock, WideBlock])
def test_only_a_change_of_shape_has_a_projection(block: Block) -> None:
    def projections(module: nn.Module) -> int:
        kernels = [p for name, p in module.named_parameters() if name.startswith("shortcut") and p.dim() == 4]
        assert all(kernel.shape[2:] == (1, 1) for kernel in kernels)
        return len(kernels)

    assert projections(block(8, 8, 1)) == 0
    assert projections(block(8, 16, 1)) == 1
    assert projections(block(8, 8, 2)) == 1


def test_only_resnet_normalises_its_projection() -> None:
    batch_norms = {
        block: sum(isinstance(m, nn.BatchNorm2d) for m in block(8, 16, 2).modules())
        for block in (BasicBlock, PreActBlock, SqueezeExciteBlock, WideBlock)
    }
    assert batch_norms == {BasicBlock: 3, PreActBlock: 2, SqueezeExciteBlock: 2, WideBlock: 2}


def features(name: str) -> tuple[Tensor, Tensor]:
    """What the last stage returns, averaged over the map, and what the head receives."""
    network: Any = create(name, 10, width=4).network
    seen: list[Tensor] = []
    network.stages.register_forward_hook(lambda _m, _i, out: seen.append(out.mean((2, 3))))
    network.head.register_forward_pre_hook(lambda _m, inputs: seen.append(inputs[0]))
    network(torch.randn(8, 3, 16, 16))
    return seen[0], seen[1]


def test_senet_has_no_norm_or_activation_after_the_last_stage() -> None:
    last, received = features("senet18")
    torch.testing.assert_close(last, received)
    assert received.min() < 0


@pytest.mark.parametrize("name", ["preactresnet18", "wideresnet28-10"])
def test_other_preactivation_networks_end_with_norm_and_relu(name: str) -> None:
    last, received = features(name)
    assert not torch.allclose(last, received)
    assert received.min() >= 0


@pytest.mark.parametrize(("channels", "hidden"), [(64, 4), (512, 32), (8, 1)])
def test_squeeze_is_sixteen_times_narrower_and_biased(channels: int, hidden: int) -> None:
    block = SqueezeExciteBlock(channels, channels, 1)
    assert block.squeeze.out_channels == hidden
    assert block.squeeze.bias is not None
    assert block.excite.bias is not None


def test_wide_groups_and_stem() -> None:
    with torch.device("meta"):
        network: Any = create("wideresnet28-10", 10).network
        narrow: Any = create("wideresnet28-10", 10, width=8).network
    assert network.stem.out_channels == 16
    assert [len(stage) for stage in network.stages] == [4, 4, 4]
    assert [stage[0].conv1.out_channels for stage in network.stages] == [160, 320, 640]
    assert [stage[0].conv1.stride for stage in network.stages] == [(1, 1), (2, 2), (2, 2)]
    assert {m.p for m in network.modules() if isinstance(m, nn.Dropout)} == {0.3}
    assert narrow.stem.out_channels == 8


def test_widen_is_another_way_to_say_width() -> None:
    with torch.device("meta"):
        by_factor = create("wideresnet28-10", 10, widen=2)
        by_width = create("wideresnet28-10", 10, width=32)
    assert str(by_factor) == str(by_width)


def test_dropout_stands_between_the_second_relu_and_the_second_convolution() -> None:
    block = WideBlock(8, 8, 1, dropout=0.5)
    seen: list[Tensor] = []
    block.dropout.register_forward_pre_hook(lambda _m, inputs: seen.append(inputs[0]))
    block.conv2.register_forward_pre_hook(lambda _m, inputs: seen.append(inputs[0]))
    block(torch.randn(4, 8, 6, 6))
    active, dropped = seen
    assert active.min() == 0  # it comes from a ReLU
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], 2 * active[kept])
    assert 0.4 < kept.sum() / (active > 0).sum() < 0.6


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


@pytest.mark.parametrize(("pixels", "tokens"), [(32, 65), (28, 50), (64, 257)])
def test_vit_has_a_position_for_every_patch_and_the_class(pixels: int, tokens: int) -> None:
    with torch.device("meta"):
        network: Any = create("vit-small", 10, image_size=pixels).network
    assert network.position.shape == (1, tokens, 384)


def test_vit_is_twelve_blocks_of_six_heads() -> None:
    with torch.device("meta"):
        network: Any = create("vit-small", 10).network
    assert len(network.blocks) == 12
    assert {block.attention.heads for block in network.blocks} == {6}
    assert {block.attention.scale for block in network.blocks} == {1 / 8}
    assert {m.eps for m in network.modules() if isinstance(m, nn.LayerNorm)} == {1e-6}
    assert not any(isinstance(m, nn.Dropout) for m in network.modules())


def test_vit_initialisation() -> None:
    network: Any = create("vit-small", 10, width=96, depth=1).network
    for module in network.modules():
        if isinstance(module, nn.Linear):
            assert module.weight.std().item() == pytest.approx(0.02, rel=0.1)
            assert module.bias.eq(0).all()
    assert network.position.std().item() == pytest.approx(0.02, rel=0.1)
    assert network.class_token.std().item() == pytest.approx(0.02, rel=0.3)


def test_transformer_block_with_silent_branches_is_identity() -> None:
    block: Any = TransformerBlock(12, 3)
    for layer in (block.attention.out, block.mlp[2]):
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    x = torch.randn(2, 5, 12)
    assert torch.equal(block(x), x)


def test_attention_does_not_care_about_the_order_of_tokens() -> None:
    block, x, order = TransformerBlock(12, 3), torch.randn(2, 5, 12), torch.randperm(5)
    torch.testing.assert_close(block(x)[:, order], block(x[:, order]))
