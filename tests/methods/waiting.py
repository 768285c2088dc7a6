"""Detects what would make the host wait for a GPU, on a machine that has none."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

WAITING_OPERATIONS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal")
WAITING_CALLS = [
    "item",
    "tolist",
    "numpy",
    "cpu",
    "__array__",
    "__bool__",
    "__float__",
    "__int__",
    "__index__",
]


class _CheckOperations(TorchDispatchMode):
    """Checks operations, also those inside torch's own functions."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert not name.startswith(WAITING_OPERATIONS), f"{func} waits for the device"
        if name.startswith("index"):  # a boolean mask hides a nonzero
            masks = [i for i in args[1] or [] if isinstance(i, Tensor)] if isinstance(args[1], list) else []
            assert all(mask.dtype != torch.bool for mask in masks), f"{func} with a mask waits for the device"
        return func(*args, **(kwargs or {}))


class _CheckCalls(TorchFunctionMode):
    """Checks calls: `.cpu()` of a CPU tensor runs no operation."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        assert name not in WAITING_CALLS, f"{name} waits for the device"
        if name == "to":
            places = [
                torch.device(a) for a in (*args[1:], *kwargs.values()) if isinstance(a, str | torch.device)
            ]
            assert all(place.type != "cpu" for place in places), "to the CPU waits for the device"
        return func(*args, **kwargs)


@contextmanager
def no_sync() -> Iterator[None]:
    """Fails on everything inside that makes the host wait for the device."""
    with _CheckOperations(), _CheckCalls():
        yield
