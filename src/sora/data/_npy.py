"""The header of a .npy file: what an array is, without reading it."""

from __future__ import annotations

from typing import IO, Any, NamedTuple

import numpy as np


class Header(NamedTuple):
    """What is known before the first value."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    start: int
    """Where the values begin."""


def read_header(file: IO[bytes]) -> Header:
    """From the start of a file; ValueError if it is none, or holds objects."""
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"npy version {version}")
    shape, fortran, dtype = readers[version](file)
    if dtype.hasobject:
        raise ValueError("Object arrays cannot be loaded")
    return Header(shape, dtype, fortran, file.tell())
