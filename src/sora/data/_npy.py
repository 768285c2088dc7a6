"""The header of a .npy file: shape and type of an array, without reading it."""

from __future__ import annotations

import math
from typing import IO, Any, NamedTuple

import numpy as np


class Header(NamedTuple):
    """What precedes the values."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    start: int
    """Position of the first value in the file."""

    @property
    def nbytes(self) -> int:
        """Size of the values."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(file: IO[bytes]) -> Header:
    """Read it from the start of a file; ValueError if there is none, or if the array contains objects."""
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"npy version {version}")
    shape, fortran, dtype = readers[version](file)
    if dtype.hasobject:
        raise ValueError("Object arrays cannot be loaded")
    return Header(shape, dtype, fortran, file.tell())
