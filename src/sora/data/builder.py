"""Packing a data set: it is built in ROOT/NAME.part and renamed when complete.

An interrupted build is resumed where it stopped, and a reader never sees an incomplete one.
"""

import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sora._files import STORED_PIXELS, locked
from sora.data._store import LEFT_OUT, NOT_OURS, digest, is_store, open_store, origin_of, progress, write_meta
from sora.data.dataset import SPLITS
from sora.data.image_files import ImageFile
from sora.errors import RunError, UserError

CHUNK = 256  # images decoded together and written before the next ones are read
CHUNK_BYTES = 1 << 26
"""Most bytes of such a chunk, files and decoded images together: large images come in smaller chunks."""
_HEADER = 256
"""Bytes reserved for the header of a file that grows, because it states the number of rows.

Recorded fingerprints and official hashes cover it: it must not change.
"""

Decoder = Callable[["Path | bytes"], NDArray[np.uint8]]
_Block = tuple[NDArray[np.uint8], NDArray[np.int64]]


class Arrays(NamedTuple):
    """One split in memory: images (N, H, W, C) and labels (N,)."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


def in_order(images: Sequence[ImageFile]) -> Callable[[int], Iterator[ImageFile]]:
    """Return a list in the form that `Builder.stream` expects."""
    return lambda start: iter(images[start:])


class GrowingArray:
    """Rows appended to PATH.part, whose length tells their number, until `finish` makes it a .npy file."""

    def __init__(self, path: Path, row: tuple[int, ...], dtype: DTypeLike) -> None:
        self._path, self._part = path, path.with_name(path.name + ".part")
        self._row, self._dtype = row, np.dtype(dtype)
        self._row_bytes = math.prod(row) * self._dtype.itemsize
        self._file = self._part.open("r+b" if self._part.exists() else "w+b")
        self.close = self._file.close

    @property
    def rows(self) -> int:
        """Number of complete rows so far."""
        return max(0, os.fstat(self._file.fileno()).st_size - _HEADER) // self._row_bytes

    def truncate(self, rows: int) -> None:
        """Drop everything after these rows."""
        self._file.truncate(_HEADER + rows * self._row_bytes)
        self._file.seek(0, os.SEEK_END)

    def append(self, rows: NDArray[np.generic]) -> None:
        """Write rows and flush them to the operating system."""
        self._file.write(rows.astype(self._dtype, casting="safe", copy=False).tobytes())
        self._file.flush()

    def read(self) -> NDArray[np.generic]:
        """Return all rows so far."""
        return np.fromfile(self._part, self._dtype, offset=_HEADER).reshape(-1, *self._row)

    def finish(self) -> None:
        """Write the header and give the file its name."""
        header = repr({"descr": self._dtype.str, "fortran_order": False, "shape": (self.rows, *self._row)})
        start = np.lib.format.magic(1, 0) + (_HEADER - 10).to_bytes(2, "little")
        self._file.seek(0)
        self._file.write(start + header.encode().ljust(_HEADER - 11) + b"\n")
        self._file.close()
        os.replace(self._part, self._path)


class Builder:
    """Writes a store; `build` creates it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, split: str, arrays: Arrays) -> None:
        """Write a split that is in memory."""
        images, labels = arrays
        self.copy(split, labels, images.shape[1:], lambda start: iter([images[start:]]))

    def copy(
        self,
        split: str,
        labels: NDArray[np.int64],
        shape: tuple[int, ...],
        blocks: Callable[[int], Iterator[NDArray[np.uint8]]],
    ) -> None:
        """Write a split whose images come in blocks, starting where an earlier attempt stopped.

        `blocks` yields images (n, H, W, C) in order, from a position on; `shape` is that of one, (H, W, C).
        """

        def labelled(done: NDArray[np.generic]) -> Iterator[_Block]:
            position = len(done)
            for images in blocks(position):
                yield images, labels[position : position + len(images)]
                position += len(images)

        self._grow(split, shape, len(labels), labelled)

    def stream(
        self,
        split: str,
        total: int,
        pictures: Callable[[int], Iterator[ImageFile]],
        decode: Decoder,
        skip_bad: int = 0,
        hint: str = "",
    ) -> None:
        """Decode and write a split that need not fit in memory, starting where an earlier attempt stopped.

        `pictures` yields the `total` images in a fixed order, from a position on; `decode` returns an array
        (H, W, C) of the same shape for all. Up to `skip_bad` bad images are left out before it is an error,
        to which `hint` adds advice.
        """
        if self._path(split, "labels").exists():
            return
        shape = _first_shape(pictures(0), decode, skip_bad, hint)
        blank = np.zeros(shape, np.uint8)  # for an image left out, so that row numbers equal positions

        def decoded(done: NDArray[np.generic]) -> Iterator[_Block]:
            bad = int((done == LEFT_OUT).sum())
            with ThreadPoolExecutor() as pool:
                for chunk in _chunks(pictures(len(done)), blank.nbytes):
                    rows = list(pool.map(lambda image: _try(image, decode, shape), chunk))
                    errors = [row for row in rows if isinstance(row, UserError)]
                    if bad + len(errors) > skip_bad:
                        raise UserError(f"{errors[skip_bad - bad]}{hint}")
                    bad += len(errors)
                    images = [blank if isinstance(row, UserError) else row for row in rows]
                    good = [not isinstance(row, UserError) for row in rows]
                    yield np.stack(images), np.where(good, [image.label for image in chunk], LEFT_OUT)

        self._grow(split, shape, total, decoded)

    def finish(self, classes: Sequence[str], test_size: int | None = None) -> None:
        """Record class names, hashes, and the side of the central square to test on (None: the image)."""
        splits, counts = {}, {}
        for split in SPLITS:
            paths = {kind: self._path(split, kind) for kind in ("images", "labels")}
            if paths["labels"].exists():
                splits[split] = {kind: digest(path) for kind, path in paths.items()}
                counts[split] = int((np.load(paths["labels"], allow_pickle=False) != LEFT_OUT).sum())
        meta = {"classes": list(classes), "test_size": test_size, "splits": splits, "counts": counts}
        write_meta(self._folder, meta)

    def _grow(
        self,
        split: str,
        shape: tuple[int, ...],
        total: int,
        blocks: Callable[[NDArray[np.generic]], Iterator[_Block]],
    ) -> None:
        """Append the blocks of images and labels that follow the labels an earlier attempt has written."""
        if self._path(split, "labels").exists():  # gets its name last
            return
        with (
            closing(GrowingArray(self._path(split, "images"), shape, np.uint8)) as images,
            closing(GrowingArray(self._path(split, "labels"), (), np.int64)) as labels,
        ):
            done = min(images.rows, labels.rows)
            images.truncate(done)
            labels.truncate(done)
            with progress(f"packing {split}", total, done) as advance:
                for new_images, new_labels in blocks(labels.read()):
                    images.append(new_images)
                    labels.append(new_labels)
                    advance(len(new_labels))
            images.finish()
            labels.finish()

    def _path(self, split: str, kind: str) -> Path:
        return self._folder / f"{split}_{kind}.npy"


def build(root: Path, name: str, origin: str, fill: Callable[[Builder], None]) -> Path:
    """Build the store ROOT/NAME unless one with the same `origin` exists already."""
    folder, part = root / name, root / f"{name}.part"
    try:
        root.mkdir(parents=True, exist_ok=True)
        with locked(root / f".{name}.lock"):  # all ranks of a run may find a store missing
            if origin_of(folder) == origin:
                return folder
            for place, ours in ((folder, is_store(folder)), (part, origin_of(part) is not None)):
                if place.exists() and not ours and (not place.is_dir() or any(place.iterdir())):
                    raise UserError(f"{place} {NOT_OURS}")
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


def _first_shape(images: Iterator[ImageFile], decode: Decoder, skip_bad: int, hint: str) -> tuple[int, ...]:
    for position, image in enumerate(images):
        row = _try(image, decode)
        if not isinstance(row, UserError):
            if row.shape[0] * row.shape[1] > STORED_PIXELS.value:
                raise STORED_PIXELS.refusal(f"{image.name}: {_size(row.shape)}{hint}")
            return row.shape
        if position >= skip_bad:
            raise UserError(f"{row}{hint}")
    raise UserError("there is no image to read")


def _chunks(images: Iterator[ImageFile], row_bytes: int) -> Iterator[list[ImageFile]]:
    """Group images to decode together; how many depends on their size, so that memory stays bounded."""
    chunk: list[ImageFile] = []
    total = 0
    for image in images:
        chunk.append(image)
        total += row_bytes + (len(image.file) if isinstance(image.file, bytes) else 0)
        if len(chunk) == CHUNK or total >= CHUNK_BYTES:
            yield chunk
            chunk, total = [], 0
    if chunk:
        yield chunk


def _try(
    image: ImageFile, decode: Decoder, shape: tuple[int, ...] | None = None
) -> NDArray[np.uint8] | UserError:
    try:
        row = decode(image.file)
    except UserError as error:
        return UserError(f"{image.name}: {error}")
    if shape is not None and row.shape != shape:
        return UserError(f"{image.name}: {_size(row.shape)}, but the first image has {_size(shape)}")
    return row


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[1]}x{shape[0]} pixels {'in grey' if shape[2] == 1 else 'in colour'}"
