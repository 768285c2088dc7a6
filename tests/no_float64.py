"""Tensors that cannot be converted to float64, as those of Apple's GPUs (MPS)."""

from typing import Any

import torch
from torch import Tensor


class NoFloat64(Tensor):
    """Refuses `double()` until it is moved to the CPU, where it is an ordinary tensor."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.double:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result.as_subclass(torch.Tensor) if func is Tensor.cpu else result


def without_float64(tensor: Tensor) -> Tensor:
    """The same values as they would be on such a device."""
    return tensor.as_subclass(NoFloat64)
