"""The memory layout in which a model's convolutions run fastest."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

WIDE = 256  # channels from which convolutions of small maps are faster in NCHW on CPU


def fast_layout(model: nn.Module) -> nn.Module:
    """Convert a model on its device to channels-last, in place; on CPU except for its wide convolutions.

    Channels-last avoids reordering activations around every convolution. But on maps of 4x4 with many
    channels oneDNN's channels-last kernels reach 100 GFLOP/s and its NCHW kernels 175; on larger maps the two
    are equally fast at such widths. So wide convolutions keep NCHW weights and convert their input, which
    makes a step of PreActResNet-18 7 % faster. Calling it again changes nothing.
    """
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for module in model.modules():
        wide = isinstance(module, nn.Conv2d) and min(module.in_channels, module.out_channels) >= WIDE
        if wide and module.weight.device.type == "cpu":
            module.weight.data = module.weight.data.contiguous()
            if _to_nchw not in module._forward_pre_hooks.values():
                module.register_forward_pre_hook(_to_nchw)
    return model


@contextmanager
def own_layout(model: nn.Module) -> Iterator[None]:
    """Undo `fast_layout` at the end of the block: tensors that were contiguous before are so again.

    The model's owner may want to save it, and safetensors accepts contiguous tensors only.
    """
    contiguous = {name for name, tensor in model.state_dict(keep_vars=True).items() if tensor.is_contiguous()}
    try:
        yield
    finally:
        for module in model.modules():
            hooks = module._forward_pre_hooks
            for key in [key for key, hook in hooks.items() if hook is _to_nchw]:
                del hooks[key]
        for name, tensor in model.state_dict(keep_vars=True).items():
            if name in contiguous:
                tensor.data = tensor.data.contiguous()


def _to_nchw(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return (args[0].contiguous(), *args[1:])
