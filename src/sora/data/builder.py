"""Packing a data set: it is built in ROOT/NAME.part and renamed when complete.

An interrupted build is resumed where it stopped, and a reader never sees an incomplete one.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sora._files import locked
from sora._reading import STORED_PIXELS
from sora.data._growing import Growing
from sora.data._progress import progress
from sora.data._store import FORMAT, LEFT_OUT, NOT_OURS, SPLITS, digest, is_store, open_store, origin_of
from sora.errors import RunError, UserError

CHUNK = 256
"""Images decoded together and written before the next ones are read."""
CHUNK_BYTES = 1 << 26
"""Most bytes of such a chunk, files and decoded images together: large images come in smaller chunks."""

Decoder = Callable[["Path | bytes"], NDArray[np.uint8]]


class Arrays(NamedTuple):
    """One split in memory: images (N, H, W, C) and labels (N,)."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


class Picture(NamedTuple):
    """An image file to be decoded into a store."""

    name: str
    file: Path | bytes
    label: int


def in_order(pictures: Sequence[Picture]) -> Callable[[int], Iterator[Picture]]:
    """A list in the form that `Builder.stream` expects."""
    return lambda start: iter(pictures[start:])


class Builder:
    """Writes a store; `build` creates it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, split: str, arrays: Arrays) -> None:
        """Write a split that is in memory."""
        self._write(f"{split}_images", arrays.images)
        self._write(f"{split}_labels", arrays.labels)

    def _write(self, name: str, array: NDArray[np.generic]) -> None:
        with closing(Growing(self._folder / f"{name}.npy", array.shape[1:], array.dtype)) as file:
            file.truncate(0)
            file.append(array)
            file.finish()

    def copy(
        self,
        split: str,
        labels: NDArray[np.int64],
        shape: tuple[int, ...],
        blocks: Callable[[int], Iterator[NDArray[np.uint8]]],
    ) -> None:
        """Write a split whose images come in blocks, starting where an earlier attempt stopped.

        Args:
            split: Its name.
            labels: The labels of all images.
            shape: Shape of an image, (H, W, C).
            blocks: Yields the images (n, H, W, C) in order, from the given position on.
        """
        if (self._folder / f"{split}_labels.npy").exists():  # written last
            return
        path = self._folder / f"{split}_images.npy"
        if not path.exists():
            with (
                closing(Growing(path, shape, np.uint8)) as images,
                progress(f"packing {split}", len(labels), images.rows) as advance,
            ):
                for block in blocks(images.rows):
                    images.append(block)
                    advance(len(block))
                images.finish()
        self._write(f"{split}_labels", labels)

    def stream(
        self,
        split: str,
        total: int,
        pictures: Callable[[int], Iterator[Picture]],
        decode: Decoder,
        skip_bad: int = 0,
        hint: str = "",
    ) -> None:
        """Decode and write a split that need not fit in memory, starting where an earlier attempt stopped.

        Args:
            split: Its name.
            total: Number of images.
            pictures: Yields them in a fixed order, from the given position on.
            decode: Returns an array (H, W, C) of the same shape for all.
            skip_bad: How many bad images to leave out before it is an error.
            hint: Advice appended to the error.
        """
        names = (self._folder / f"{split}_images.npy", self._folder / f"{split}_labels.npy")
        if names[1].exists():
            return
        shape = _first_shape(pictures(0), decode, skip_bad, hint)
        with (
            closing(Growing(names[0], shape, np.uint8)) as images,
            closing(Growing(names[1], (), np.int64)) as labels,
            ThreadPoolExecutor() as pool,
        ):
            done = min(images.rows, labels.rows)
            images.truncate(done)
            labels.truncate(done)
            bad, rest = int((labels.read() == LEFT_OUT).sum()), pictures(done)
            with progress(f"packing {split}", total, done) as advance:
                for chunk in _chunks(rest, math.prod(shape)):
                    rows = list(pool.map(lambda picture: _try(picture, decode, shape), chunk))
                    bad += _count_bad(rows, skip_bad - bad, hint)
                    _append(images, labels, chunk, rows)
                    advance(len(chunk))
            images.finish()
            labels.finish()

    def finish(self, classes: Sequence[str], test_size: int | None = None) -> None:
        """Record class names, hashes, and the side of the central square to test on (None: the image)."""
        splits, counts = {}, {}
        for split in SPLITS:
            paths = {kind: self._folder / f"{split}_{kind}.npy" for kind in ("images", "labels")}
            if paths["labels"].exists():
                splits[split] = {kind: digest(path) for kind, path in paths.items()}
                counts[split] = int((np.load(paths["labels"], allow_pickle=False) != LEFT_OUT).sum())
        meta = {"format": FORMAT, "classes": list(classes), "test_size": test_size}
        meta |= {"splits": splits, "counts": counts}
        (self._folder / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")


def build(root: Path, name: str, origin: str, fill: Callable[[Builder], None]) -> Path:
    """Build the store ROOT/NAME unless one with the same `origin` exists already."""
    folder, part = root / name, root / f"{name}.part"
    try:
        root.mkdir(parents=True, exist_ok=True)
        with locked(root / f".{name}.lock"):  # all ranks of a run may find a store missing
            if origin_of(folder) == origin:
                return folder
            _refuse_others(folder, part)
            if origin_of(part) != origin:
                shutil.rmtree(part, ignore_errors=True)
                part.mkdir()
                (part / "origin").write_text(origin, encoding="utf-8")
            fill(Builder(part))
            open_store(part, name)
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(part, folder)
    except OSError as error:
        raise RunError(f"could not build {folder}: {error}; run the same command again to resume") from None
    return folder


def _refuse_others(folder: Path, part: Path) -> None:
    """Raise if a folder that would be replaced was not created by this package and is not empty."""
    for place, ours in ((folder, is_store(folder)), (part, origin_of(part) is not None)):
        if place.exists() and not ours and (not place.is_dir() or any(place.iterdir())):
            raise UserError(f"{place} {NOT_OURS}")


def _first_shape(pictures: Iterator[Picture], decode: Decoder, skip_bad: int, hint: str) -> tuple[int, ...]:
    rows = []
    for picture in pictures:
        row = _try(picture, decode)
        if not isinstance(row, UserError):
            if row.shape[0] * row.shape[1] > STORED_PIXELS.value:
                raise STORED_PIXELS.refusal(f"{picture.name}: {_size(row.shape)}{hint}")
            return row.shape
        rows.append(row)
        _count_bad(rows, skip_bad, hint)
    raise UserError("there is no image to read")


def _chunks(pictures: Iterator[Picture], row_bytes: int) -> Iterator[list[Picture]]:
    """Images to decode together; their number depends on their size, so that memory stays bounded."""
    chunk: list[Picture] = []
    total = 0
    for picture in pictures:
        chunk.append(picture)
        total += row_bytes + (len(picture.file) if isinstance(picture.file, bytes) else 0)
        if len(chunk) == CHUNK or total >= CHUNK_BYTES:
            yield chunk
            chunk, total = [], 0
    if chunk:
        yield chunk


def _try(
    picture: Picture, decode: Decoder, shape: tuple[int, ...] | None = None
) -> NDArray[np.uint8] | UserError:
    try:
        row = decode(picture.file)
    except UserError as error:
        return UserError(f"{picture.name}: {error}")
    if shape is not None and row.shape != shape:
        return UserError(f"{picture.name}: {_size(row.shape)}, but the first image has {_size(shape)}")
    return row


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[1]}x{shape[0]} pixels {'in grey' if shape[2] == 1 else 'in colour'}"


def _count_bad(rows: Sequence[NDArray[np.uint8] | UserError], allowed: int, hint: str) -> int:
    bad = [row for row in rows if isinstance(row, UserError)]
    if len(bad) > allowed:
        raise UserError(f"{bad[allowed]}{hint}")
    return len(bad)


def _append(
    images: Growing, labels: Growing, chunk: Sequence[Picture], rows: Sequence[NDArray[np.uint8] | UserError]
) -> None:
    """Append a chunk; an image left out keeps a blank row, so that row numbers equal positions."""
    good = [not isinstance(row, UserError) for row in rows]
    blank = np.zeros(images.row, np.uint8)
    images.append(np.stack([blank if isinstance(row, UserError) else row for row in rows]))
    labels.append(np.where(good, [picture.label for picture in chunk], LEFT_OUT))
