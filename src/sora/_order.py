"""The memory order in which images pass through a model: channels-last where its convolutions are faster."""

from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn

from sora._passes import evaluating
from sora._seeds import seeded

PROBED = 2  # images on which a model's outputs in both orders are compared

_AGREES = WeakKeyDictionary[nn.Module, dict[object, bool]]()
_KEPT = WeakSet[nn.Module]()


def fast_order(model: nn.Module, x: Tensor) -> Tensor:
    """Return `x` in channels-last order if it is a 4-d input on the CPU of a model with convolutions.

    The rule is fixed: nothing is timed. On the CPU the order of a convolution's input decides that of all
    feature maps after it, so the model itself is not changed. A model that fails in this order, or whose
    outputs then differ by more than rounding, gets `x` as it is. The first input of each shape shows whether
    it does: two of its images pass through the model in evaluation mode, in both orders. Compiled models
    choose the order of their feature maps themselves.
    """
    if not isinstance(model, nn.Module) or not isinstance(x, Tensor):
        return x  # refused later
    if x.dim() != 4 or x.device.type != "cpu" or model in _KEPT:
        return x
    if x.is_contiguous(memory_format=torch.channels_last) or not x.is_floating_point():
        return x
    known, key = _AGREES.setdefault(model, {}), (x.shape[1:], x.dtype)
    if key not in known:
        compiled = hasattr(model, "_orig_mod") or model._compiled_call_impl is not None
        convolves = any(isinstance(module, nn.Conv2d) for module in model.modules())
        known[key] = convolves and not compiled and _agrees(model, x[:PROBED].detach())
    return x.contiguous(memory_format=torch.channels_last) if known[key] else x


@contextmanager
def own_order(model: nn.Module) -> Iterator[None]:
    """Leave the inputs of a model in the order they have, inside the block."""
    _KEPT.add(model)
    try:
        yield
    finally:
        _KEPT.discard(model)


def close(first: object, second: object) -> bool:
    """Return whether two outputs of a model differ by rounding only."""
    if not isinstance(first, Tensor) or not isinstance(second, Tensor) or first.shape != second.shape:
        return False
    slack = torch.finfo(first.dtype).eps ** 0.5
    return torch.allclose(first, second, rtol=0, atol=slack * max(1.0, float(first.abs().max())))


def _agrees(model: nn.Module, x: Tensor) -> bool:
    outputs = []
    with evaluating(model), torch.no_grad():
        for order in (torch.contiguous_format, torch.channels_last):
            try:
                with seeded(0):
                    outputs.append(model(x.contiguous(memory_format=order)))
            except Exception:  # what it raises in the first order, the caller's own pass will raise again
                return False
    return close(*outputs)
