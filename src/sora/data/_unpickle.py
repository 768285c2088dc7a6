"""Reads the pickles of CIFAR's python archives without running anything they say.

They hold dictionaries, lists, text, numbers and uint8 arrays. Whatever else a pickle names is refused,
and the three NumPy names an array needs are answered by stand-ins of our own.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sora.errors import UserError


def unpickle(data: bytes, what: str) -> dict[str, Any]:
    """The dictionary in `data`, its keys as text, its arrays as uint8 NumPy arrays."""
    try:
        table = _Unpickler(io.BytesIO(data), encoding="bytes").load()
        return {key.decode() if isinstance(key, bytes) else key: _plain(v) for key, v in table.items()}
    except UserError:
        raise
    except Exception as error:  # a broken pickle can raise anything
        raise UserError(f"{what} is not a CIFAR batch: {error}") from None


class _Array:
    """Stands in for numpy.ndarray; a pickle fills it through `__setstate__`."""

    array: NDArray[np.uint8]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, _, raw = state
        if not isinstance(dtype, _Dtype) or not isinstance(raw, bytes):
            raise UserError("a CIFAR pickle may hold uint8 arrays only")
        self.array = np.frombuffer(raw, np.uint8).reshape(shape)


class _Dtype:
    """Stands in for numpy.dtype."""

    def __init__(self, code: object, *_: object) -> None:
        if code not in ("u1", b"u1", "|u1", b"|u1"):
            raise UserError("a CIFAR pickle may hold uint8 arrays only")

    def __setstate__(self, state: object) -> None:
        """Byte order and the like mean nothing for uint8."""


def _reconstruct(*_: object) -> _Array:
    return _Array()


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise UserError(f"refused a pickle that asks for {module}.{name}; CIFAR's hold no code")
        return _ALLOWED[module, name]


def _plain(value: object) -> object:
    return value.array if isinstance(value, _Array) else value
