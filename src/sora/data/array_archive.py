"""An npz file of plain arrays, from a source that is not trusted."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sora.data._archives import open_archive
from sora.data._npy import Header, read_header
from sora.errors import UserError


class ArrayArchive:
    """Headers are read at once, arrays only on request; an archive that unpacks to too much is refused.

    Attributes:
        headers: Shape and type of each array.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            raise UserError(f"{path} does not exist")
        if not path.is_file() or not zipfile.is_zipfile(path):
            raise UserError(f"{path} is not an npz file")
        open_archive(path)  # refuses what unpacks to too much
        self.headers = self._read_headers()

    def array(self, key: str) -> NDArray[Any]:
        """One array, in memory."""
        with self.reading() as archive, archive.open(f"{key}.npy") as file:
            array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
            return array

    def _read_headers(self) -> dict[str, Header]:
        headers = {}
        with self.reading() as archive:
            for member in archive.namelist():
                if member.endswith(".npy"):
                    with archive.open(member) as file:
                        header = read_header(file)
                    if archive.getinfo(member).file_size != header.start + header.nbytes:
                        raise ValueError(f"{member} declares a size that is not its own")
                    headers[member.removesuffix(".npy")] = header
        return headers

    @contextmanager
    def reading(self) -> Iterator[zipfile.ZipFile]:
        """The archive; any error in it becomes a one-line message with its name."""
        try:
            with zipfile.ZipFile(self.path) as archive:
                yield archive
        except MemoryError:
            raise UserError(f"{self.path} contains an array that does not fit in memory") from None
        except Exception as error:  # zlib, zipfile, lzma, tokenize and NumPy each raise their own
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise UserError(f"{self.path} is not an npz file of plain arrays: {reason}") from None
