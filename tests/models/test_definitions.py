"""Each model equals its definition, written out once more as plain functions of its weights."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sora.models import create

Weights = dict[str, Tensor]


def weights(network: nn.Module, prefix: str = "") -> Weights:
    """The network's tensors whose names start with `prefix`, without it."""
    return {k.removeprefix(prefix): v for k, v in network.state_dict().items() if k.startswith(prefix)}


def norm(x: Tensor, w: Weights, name: str) -> Tensor:
    mean, var = w[f"{name}.running_mean"], w[f"{name}.running_var"]
    mean, var, scale, shift = (v[:, None, None] for v in (mean, var, w[f"{name}.weight"], w[f"{name}.bias"]))
    return (x - mean) / (var + 1e-5).sqrt() * scale + shift


def conv(x: Tensor, w: Weights, name: str, stride: int = 1) -> Tensor:
    kernel = w[f"{name}.weight"]
    if kernel.shape[-1] % 2 == 0:  # a stem on patches
        return F.conv2d(x, kernel, stride=kernel.shape[-1])
    return F.conv2d(x, kernel, w.get(f"{name}.bias"), stride, padding=kernel.shape[-1] // 2)


def linear(x: Tensor, w: Weights, name: str) -> Tensor:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def resnet_block(x: Tensor, w: Weights, stride: int) -> Tensor:
    out = norm(conv(x, w, "conv1", stride), w, "bn1").relu()
    out = norm(conv(out, w, "conv2"), w, "bn2")
    if "shortcut.0.weight" in w:
        x = norm(conv(x, w, "shortcut.0", stride), w, "shortcut.1")
    return (out + x).relu()


def preact_block(x: Tensor, w: Weights, stride: int, raw: bool = True) -> Tensor:
    active = norm(x, w, "bn1").relu()
    out = conv(norm(conv(active, w, "conv1", stride), w, "bn2").relu(), w, "conv2")
    if "shortcut.weight" in w:
        return out + conv(x if raw else active, w, "shortcut", stride)
    return out + x


activated_block = partial(preact_block, raw=False)  # the projection reads the activated input


def squeeze_excite_block(x: Tensor, w: Weights, stride: int) -> Tensor:
    active = norm(x, w, "bn1").relu()
    out = conv(norm(conv(active, w, "conv1", stride), w, "bn2").relu(), w, "conv2")
    gate = conv(conv(F.adaptive_avg_pool2d(out, 1), w, "squeeze").relu(), w, "excite").sigmoid()
    return out * gate + (conv(active, w, "shortcut", stride) if "shortcut.weight" in w else x)


def cnn(network: Any, x: Tensor, block: Any, norm_first: bool, norm_last: bool) -> Tensor:
    w = weights(network)
    x = conv(x, w, "stem")
    x = norm(x, w, "norm").relu() if norm_first else x
    for s, stage in enumerate(network.stages):
        for b in range(len(stage)):
            x = block(x, weights(network, f"stages.{s}.{b}."), 2 if s > 0 and b == 0 else 1)
    x = norm(x, w, "norm").relu() if norm_last else x
    return linear(F.adaptive_avg_pool2d(x, 1).flatten(1), w, "head")


def layer_norm(x: Tensor, w: Weights, name: str) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    return centred / (variance + 1e-6).sqrt() * w[f"{name}.weight"] + w[f"{name}.bias"]


def attention(x: Tensor, w: Weights, heads: int) -> Tensor:
    q, k, v = linear(x, w, "attention.qkv").chunk(3, dim=-1)
    mixed = [
        F.scaled_dot_product_attention(*qkv)
        for qkv in zip(q.chunk(heads, -1), k.chunk(heads, -1), v.chunk(heads, -1), strict=True)
    ]
    return linear(torch.cat(mixed, dim=-1), w, "attention.out")


def vit(network: Any, x: Tensor, patch: int, heads: int) -> Tensor:
    w = weights(network)
    patches = F.unfold(x, patch, stride=patch).transpose(1, 2)  # (N, T, C * patch * patch), row by row
    tokens = patches @ w["embed.weight"].flatten(1).T + w["embed.bias"]
    tokens = torch.cat([w["class_token"].expand(len(x), -1, -1), tokens], dim=1) + w["position"]
    for b in range(len(network.blocks)):
        v = weights(network, f"blocks.{b}.")
        tokens = tokens + attention(layer_norm(tokens, v, "norm1"), v, heads)
        tokens = tokens + linear(F.gelu(linear(layer_norm(tokens, v, "norm2"), v, "mlp.0")), v, "mlp.2")
    return linear(layer_norm(tokens, w, "norm")[:, 0], w, "head")


def settled(name: str, **options: Any) -> nn.Module:
    """A network in evaluation mode with random weights, affine parameters and running statistics."""
    torch.manual_seed(0)
    network: nn.Module = create(name, 5, **options).network.double().eval()  # type: ignore[union-attr,operator]
    for key, value in network.state_dict().items():
        if value.is_floating_point() and value.dim() == 1:  # BN and LayerNorm, biases
            value.uniform_(0.5, 1.5) if key.endswith(("weight", "var")) else value.normal_(std=0.3)
    return network


@pytest.mark.parametrize(
    ("name", "options", "block", "norm_first", "norm_last"),
    [
        ("resnet18", {}, resnet_block, True, False),
        ("preactresnet18", {}, preact_block, False, True),
        ("preactresnet18", {"shortcut_input": "activated"}, activated_block, False, True),
        ("patchresnet", {"blocks": 2}, preact_block, False, True),
        ("senet18", {}, squeeze_excite_block, True, False),
        ("wideresnet28-10", {"depth": 16}, activated_block, False, True),
    ],
)
def test_convolutional_model(name, options, block, norm_first, norm_last) -> None:
    network = settled(name, width=32, **options)
    x = torch.randn(3, 3, 12, 12, dtype=torch.float64)
    torch.testing.assert_close(network(x), cnn(network, x, block, norm_first, norm_last))


def test_vision_transformer() -> None:
    network = settled("vit-small", image_size=12, width=24, depth=3, heads=3)
    x = torch.randn(3, 3, 12, 12, dtype=torch.float64)
    torch.testing.assert_close(network(x), vit(network, x, patch=4, heads=3))
