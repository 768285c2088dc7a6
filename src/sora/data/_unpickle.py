"""The pickles of CIFAR's python archives, read without running any code they name.

They contain dictionaries, lists, text, numbers and uint8 arrays. A pickle of anything else is refused, and
the NumPy names that an array needs are replaced by classes defined here.
"""

import io
import pickle
import pickletools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sora.errors import UserError


def unpickle(data: bytes, what: str) -> dict[str, Any]:
    """Return the dictionary in `data`, its keys as text, its arrays as uint8 NumPy arrays."""
    try:
        _check_opcodes(data)
        batch = _Unpickler(io.BytesIO(data), encoding="bytes").load()
        arrays = {key: value.array if isinstance(value, _Array) else value for key, value in batch.items()}
        return {key.decode() if isinstance(key, bytes) else key: value for key, value in arrays.items()}
    except UserError:
        raise
    except Exception as error:  # a broken pickle can raise anything
        raise UserError(f"{what} is not a CIFAR batch: {error}") from None


_VALUES = """NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 FLOAT BINFLOAT STRING BINSTRING
    SHORT_BINSTRING UNICODE BINUNICODE SHORT_BINUNICODE BINBYTES SHORT_BINBYTES GLOBAL STACK_GLOBAL"""
_OTHER = "PROTO FRAME MARK APPEND APPENDS SETITEM SETITEMS REDUCE BUILD STOP"
_CONTAINERS = {"EMPTY_DICT", "DICT", "EMPTY_LIST", "LIST"}
_CONTAINERS |= {"EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}
_PUT = {"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"}
_GET = {"GET", "BINGET", "LONG_BINGET"}
_OPCODES = {*_VALUES.split(), *_OTHER.split()} | _CONTAINERS | _PUT | _GET
MAX_CONTAINERS = 1000  # lists, tuples and dictionaries in one pickle; CIFAR's have about ten


def _check_opcodes(data: bytes) -> None:
    """Refuse a pickle that would take far more memory or time than its size, before anything is built.

    A memo of any length can be asked for by one number, and a container that is used twice grows
    exponentially when it is nested. CIFAR's files do neither.
    """
    containers: set[int] = set()  # memo numbers
    count = memoised = 0
    previous = ""
    for opcode, argument, _ in pickletools.genops(data):
        name = opcode.name
        if name not in _OPCODES:
            raise UserError(f"refused a pickle with the instruction {name}; CIFAR's do not have it")
        if name in _PUT:
            number = memoised if argument is None else int(argument)
            memoised += 1
            if number > len(data):  # a file has fewer instructions than bytes
                raise UserError(f"refused a pickle that numbers an object {number:,}")
            if previous in _CONTAINERS:
                containers.add(number)
        elif name in _GET and int(argument or 0) in containers:
            raise UserError("refused a pickle that uses a list, tuple or dictionary twice")
        count += name in _CONTAINERS
        if count > MAX_CONTAINERS:
            raise UserError(f"refused a pickle of more than {MAX_CONTAINERS} lists, tuples and dictionaries")
        previous = name


class _Array:
    """Replaces numpy.ndarray; a pickle fills it through `__setstate__`."""

    array: NDArray[np.uint8]

    def __init__(self, *_: object) -> None: ...

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, _, raw = state
        if not isinstance(dtype, _Dtype) or not isinstance(raw, bytes):
            raise UserError("a CIFAR pickle may contain uint8 arrays only")
        self.array = np.frombuffer(raw, np.uint8).reshape(shape)


class _Dtype:
    """Replaces numpy.dtype."""

    def __init__(self, code: object, *_: object) -> None:
        if code not in ("u1", b"u1", "|u1", b"|u1"):
            raise UserError("a CIFAR pickle may contain uint8 arrays only")

    def __setstate__(self, state: object) -> None:
        """Ignore byte order and the like, which do not matter for uint8."""


_ALLOWED = {
    "numpy.core.multiarray._reconstruct": _Array,
    "numpy._core.multiarray._reconstruct": _Array,
    "numpy.ndarray": _Array,
    "numpy.dtype": _Dtype,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in _ALLOWED:
            raise UserError(f"refused a pickle that asks for {module}.{name}; CIFAR's contain no code")
        return _ALLOWED[f"{module}.{name}"]
