"""NumPy archives of images and labels, under MedMNIST's keys or those of Keras."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from sora._reading import CLASSES, TEXT
from sora.data._npy import Header
from sora.data._store import SPLITS
from sora.data.array_archive import ArrayArchive
from sora.data.builder import Builder
from sora.data.dataset import ImageSet
from sora.errors import UserError

_KEYS = ("{}_images", "{}_labels"), ("x_{}", "y_{}")
_BLOCK = 1 << 24
"""Bytes of images read and written together."""


class Archive:
    """An npz file: headers, labels and class names are read at once, images only on request."""

    def __init__(self, path: Path) -> None:
        self._file = ArrayArchive(path)
        headers = self._file.headers
        images, labels = next((keys for keys in _KEYS if keys[0].format("train") in headers), _KEYS[0])
        self._keys: dict[str, str] = {}
        self._images: dict[str, Header] = {}
        self.labels: dict[str, NDArray[np.int64]] = {}
        for split in SPLITS:
            x, y = images.format(split), labels.format(split)
            if x in headers and y in headers:
                _check(f"{path}: {split}", headers[x], headers[y])
                self._keys[split], self._images[split] = x, headers[x]
                self.labels[split] = self._file.array(y).reshape(-1).astype(np.int64)
        if not {"train", "test"} <= self.labels.keys():
            raise UserError(
                f"{path} contains {', '.join(headers) or 'nothing'}; expected train_images train_labels "
                "test_images test_labels (val_* is optional), or x_train y_train x_test y_test"
            )
        if "classes" in headers and headers["classes"].nbytes > TEXT.value:
            raise TEXT.refusal(f"{path}: its array classes")
        names = self._file.array("classes").reshape(-1).tolist() if "classes" in headers else None
        self.classes = _classes(path, names, self.labels)
        """Names from the array `classes`, else numbers."""

    @property
    def image_bytes(self) -> int:
        """Size of the images of all splits together."""
        return sum(int(np.prod(header.shape, dtype=np.int64)) for header in self._images.values())

    def read(self, split: str) -> ImageSet:
        """One split, in memory."""
        images = self._file.array(self._keys[split]).reshape(-1, *_row(self._images[split]))
        return ImageSet(torch.from_numpy(images), torch.from_numpy(self.labels[split]))

    def pack(self, builder: Builder, classes: Sequence[str]) -> None:
        """Fill a store, one block of images at a time."""
        for split, labels in self.labels.items():
            builder.copy(split, labels, _row(self._images[split]), partial(self._blocks, split))
        builder.finish(classes)

    def _blocks(self, split: str, start: int) -> Iterator[NDArray[np.uint8]]:
        """The images from position `start` on."""
        header, key = self._images[split], self._keys[split]
        if header.fortran:  # its rows are scattered over the whole member
            yield self._file.array(key)[start:].reshape(-1, *_row(header))
            return
        row = int(np.prod(header.shape[1:], dtype=np.int64))
        with self._file.reading() as archive, archive.open(f"{key}.npy") as file:
            file.seek(header.start + start * row)
            for first in range(start, header.shape[0], step := max(1, _BLOCK // row)):
                count = min(step, header.shape[0] - first)
                block = file.read(count * row)
                if len(block) < count * row:
                    raise EOFError(f"{key} is truncated")
                yield np.frombuffer(block, np.uint8).reshape(count, *_row(header))
            file.read(1)  # reaching the end compares the checksum


def _row(images: Header) -> tuple[int, ...]:
    """(H, W, C)."""
    return images.shape[1:] if len(images.shape) == 4 else (*images.shape[1:], 1)


def _check(what: str, images: Header, labels: Header) -> None:
    row = _row(images)
    if images.dtype != np.uint8 or len(row) != 3 or row[2] not in (1, 3) or min(row) < 1:
        raise UserError(
            f"{what} images are {images.dtype} {images.shape}; "
            "expected uint8 (N, H, W), (N, H, W, 1) or (N, H, W, 3)"
        )
    count = images.shape[0]
    if labels.dtype.kind not in "iu" or np.prod(labels.shape, dtype=np.int64) != count or count < 1:
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
