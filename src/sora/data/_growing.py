"""A .npy file that grows row by row; its length shows how far an interrupted writer got."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike, NDArray

_HEADER = 256
"""Space reserved at the start for the header, which contains the number of rows, known only at the end."""


class Growing:
    """Rows of one shape and type, appended to PATH.part until `finish` gives the file its name."""

    def __init__(self, path: Path, row: tuple[int, ...], dtype: DTypeLike) -> None:
        self._path, self._part = path, path.with_name(path.name + ".part")
        self.row, self._dtype = row, np.dtype(dtype)
        self._row_bytes = int(np.prod(row, dtype=np.int64)) * self._dtype.itemsize
        self._file = self._part.open("r+b" if self._part.exists() else "w+b")
        self.truncate(self.rows)

    @property
    def rows(self) -> int:
        """Number of complete rows so far."""
        return max(0, os.fstat(self._file.fileno()).st_size - _HEADER) // self._row_bytes

    def truncate(self, rows: int) -> None:
        """Drop everything after these rows."""
        self._file.truncate(_HEADER + rows * self._row_bytes)
        self._file.seek(0, io.SEEK_END)

    def append(self, rows: NDArray[np.generic]) -> None:
        """Write rows and flush them to the operating system."""
        self._file.write(np.ascontiguousarray(rows, self._dtype).reshape(-1, *self.row).tobytes())
        self._file.flush()

    def read(self) -> NDArray[np.generic]:
        """All rows so far."""
        return np.fromfile(self._part, self._dtype, offset=_HEADER).reshape(-1, *self.row)

    def finish(self) -> None:
        """Write the header and give the file its name."""
        header = repr({"descr": self._dtype.str, "fortran_order": False, "shape": (self.rows, *self.row)})
        start = np.lib.format.magic(1, 0) + (_HEADER - 10).to_bytes(2, "little")
        self._file.seek(0)
        self._file.write(start + header.encode().ljust(_HEADER - 11) + b"\n")
        self.close()
        os.replace(self._part, self._path)

    def close(self) -> None:
        """Stop for now; a later writer continues from here."""
        self._file.close()
