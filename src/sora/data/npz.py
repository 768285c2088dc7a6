"""NumPy files of unknown origin: npy headers, npz archives of arrays, and of images and labels."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from sora._files import CLASSES, TEXT
from sora.data._archives import open_archive
from sora.data.dataset import SPLITS, ImageSet
from sora.errors import UserError

if TYPE_CHECKING:
    from sora.data.builder import Builder

_KEYS = ("{}_images", "{}_labels"), ("x_{}", "y_{}")  # of MedMNIST and of Keras
_EXPECTED = "train_images train_labels test_images test_labels (val_* is optional)"
_EXPECTED += ", or x_train y_train x_test y_test"
_BLOCK = 1 << 24  # bytes of images read and written together


class Header(NamedTuple):
    """What precedes the values of an array in a file."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    start: int  # position of the first value in the file

    @property
    def nbytes(self) -> int:
        """Size of the values."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(file: IO[bytes]) -> Header:
    """Read the start of an npy file; ValueError if it has no header, or if the array contains objects."""
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"npy version {version}")
    shape, fortran, dtype = readers[version](file)
    if dtype.hasobject:
        raise ValueError("Object arrays cannot be loaded")
    return Header(shape, dtype, fortran, file.tell())


class ArrayArchive:
    """An npz file of plain arrays; one that unpacks to too much is refused.

    `headers` has shape and type of each array. The arrays themselves are read only on request.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            raise UserError(f"{path} does not exist")
        if not path.is_file() or not zipfile.is_zipfile(path):
            raise UserError(f"{path} is not an npz file")
        open_archive(path)  # refuses what unpacks to too much
        self.headers: dict[str, Header] = {}
        with self._reading() as archive:
            for member in archive.namelist():
                if member.endswith(".npy"):
                    with archive.open(member) as file:
                        header = read_header(file)
                    if archive.getinfo(member).file_size != header.start + header.nbytes:
                        raise ValueError(f"{member} declares a size that is not its own")
                    self.headers[member.removesuffix(".npy")] = header

    def array(self, key: str) -> NDArray[Any]:
        """Read one array into memory."""
        with self._reading() as archive, archive.open(f"{key}.npy") as file:
            array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
            return array

    @contextmanager
    def _reading(self) -> Iterator[zipfile.ZipFile]:
        """Open the archive; any error in it becomes a one-line message with its name."""
        try:
            with zipfile.ZipFile(self.path) as archive:
                yield archive
        except MemoryError:
            raise UserError(f"{self.path} contains an array that does not fit in memory") from None
        except Exception as error:  # zlib, zipfile, lzma, tokenize and NumPy each raise their own
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise UserError(f"{self.path} is not an npz file of plain arrays: {reason}") from None


class ImageArchive(ArrayArchive):
    """An npz file of images and labels; labels and class names are read at once, images only on request."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        headers = self.headers
        images, labels = next((keys for keys in _KEYS if keys[0].format("train") in headers), _KEYS[0])
        self._keys: dict[str, str] = {}
        self.labels: dict[str, NDArray[np.int64]] = {}
        for split in SPLITS:
            x, y = images.format(split), labels.format(split)
            if x in headers and y in headers:
                _check(f"{path}: {split}", headers[x], headers[y])
                self._keys[split] = x
                self.labels[split] = self.array(y).reshape(-1).astype(np.int64)
        if not {"train", "test"} <= self.labels.keys():
            raise UserError(f"{path} contains {', '.join(headers) or 'nothing'}; expected {_EXPECTED}")
        if "classes" in headers and headers["classes"].nbytes > TEXT.value:
            raise TEXT.refusal(f"{path}: its array classes")
        names = self.array("classes").reshape(-1).tolist() if "classes" in headers else None
        self.classes = _classes(path, names, self.labels)  # names from the array `classes`, else numbers

    @property
    def image_bytes(self) -> int:
        """Size of the images of all splits together."""
        return sum(self.headers[key].nbytes for key in self._keys.values())

    def read(self, split: str) -> ImageSet:
        """Read one split into memory."""
        key = self._keys[split]
        images = self.array(key).reshape(-1, *_row(self.headers[key]))
        return ImageSet(torch.from_numpy(images), torch.from_numpy(self.labels[split]))

    def pack(self, builder: Builder, classes: Sequence[str]) -> None:
        """Fill a store, one block of images at a time."""
        for split, labels in self.labels.items():
            key = self._keys[split]
            builder.copy(split, labels, _row(self.headers[key]), partial(self._blocks, key))
        builder.finish(classes)

    def _blocks(self, key: str, start: int) -> Iterator[NDArray[np.uint8]]:
        """Yield the images from position `start` on."""
        header = self.headers[key]
        if header.fortran:  # its rows are scattered over the whole member
            yield self.array(key)[start:].reshape(-1, *_row(header))
            return
        row = math.prod(header.shape[1:])
        with self._reading() as archive, archive.open(f"{key}.npy") as file:
            file.seek(header.start + start * row)
            for first in range(start, header.shape[0], step := max(1, _BLOCK // row)):
                count = min(step, header.shape[0] - first)
                block = file.read(count * row)
                if len(block) < count * row:
                    raise EOFError(f"{key} is truncated")
                yield np.frombuffer(block, np.uint8).reshape(count, *_row(header))
            file.read(1)  # reaching the end compares the checksum


def _row(images: Header) -> tuple[int, ...]:
    """Return the shape of an image, (H, W, C)."""
    return images.shape[1:] if len(images.shape) == 4 else (*images.shape[1:], 1)


def _check(what: str, images: Header, labels: Header) -> None:
    row = _row(images)
    if images.dtype != np.uint8 or len(row) != 3 or row[2] not in (1, 3) or min(row) < 1:
        expected = "expected uint8 (N, H, W), (N, H, W, 1) or (N, H, W, 3)"
        raise UserError(f"{what} images are {images.dtype} {images.shape}; {expected}")
    count = images.shape[0]
    if labels.dtype.kind not in "iu" or math.prod(labels.shape) != count or count < 1:
        raise UserError(f"{what} labels are {labels.dtype} {labels.shape} for {count} images")


def _classes(path: Path, names: list[object] | None, labels: Mapping[str, NDArray[np.int64]]) -> list[str]:
    highest = max(int(values.max()) for values in labels.values())
    lowest = min(int(values.min()) for values in labels.values())
    if names is None and highest >= len(labels["train"]):  # checked before a list of that length is made
        raise UserError(f"{path} has labels {lowest}..{highest}, more classes than training images")
    if highest >= CLASSES.value:
        raise CLASSES.refusal(f"{path}: its label {highest}")
    classes = [str(name) for name in (range(highest + 1) if names is None else names)]
    if lowest < 0 or highest >= len(classes):
        raise UserError(f"{path} has labels {lowest}..{highest}; expected 0..{len(classes) - 1}")
    missing = np.flatnonzero(np.bincount(labels["train"], minlength=len(classes)) == 0)
    if missing.size:
        raise UserError(f"{path}: class {classes[missing[0]]!r} has no training image")
    return classes
