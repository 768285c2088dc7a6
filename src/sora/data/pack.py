"""Data sets on disk: ROOT/NAME/{train,val,test}_{images,labels}.npy and meta.json, complete or absent.

A store is built in ROOT/NAME.part and renamed when it is whole: an interrupted build goes on where it
stopped, and a reader never sees half of one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from sora.data._growing import Growing
from sora.data._progress import progress
from sora.data._store import Dataset, ImageSet
from sora.errors import RunError, UserError

MEMORY_BUDGET = 1 << 30
"""An array above this size stays on disk, memory-mapped."""
SPLITS = ("train", "val", "test")
_FORMAT, _CHUNK, _LEFT_OUT = 1, 256, -1

Decoder = Callable[["Path | bytes"], NDArray[np.uint8]]


class Arrays(NamedTuple):
    """One split in memory: images (N, H, W, C) and labels (N,)."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


class Picture(NamedTuple):
    """One image on its way into a store."""

    name: str
    file: Path | bytes
    label: int


def in_order(pictures: Sequence[Picture]) -> Callable[[int], Iterator[Picture]]:
    """What `Builder.stream` wants, from a list."""
    return lambda start: iter(pictures[start:])


class Builder:
    """Writes a store; `build` hands it out."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, split: str, arrays: Arrays) -> None:
        """Write a split that is in memory."""
        for kind, array in (("images", arrays.images), ("labels", arrays.labels)):
            file = Growing(self._folder / f"{split}_{kind}.npy", array.shape[1:], array.dtype)
            file.truncate(0)
            file.append(array)
            file.finish()

    def stream(
        self,
        split: str,
        total: int,
        pictures: Callable[[int], Iterator[Picture]],
        decode: Decoder,
        skip_bad: int = 0,
        hint: str = "",
    ) -> None:
        """Decode and write a split that need not fit in memory, from where an earlier attempt stopped.

        Args:
            split: its name.
            total: how many pictures there are.
            pictures: gives them in a fixed order, from the given position on.
            decode: gives (H, W, C), the same for all.
            skip_bad: how many bad pictures to leave out before it is an error.
            hint: what the error advises.
        """
        if (self._folder / f"{split}_labels.npy").exists():
            return
        shape = _first_shape(pictures(0), decode, skip_bad, hint)
        images = Growing(self._folder / f"{split}_images.npy", shape, np.uint8)
        labels = Growing(self._folder / f"{split}_labels.npy", (), np.int64)
        done = min(images.rows, labels.rows)
        images.truncate(done)
        labels.truncate(done)
        bad = int((labels.read() == _LEFT_OUT).sum())
        with ThreadPoolExecutor() as pool, progress(f"packing {split}", total, done) as advance:
            rest = pictures(done)
            while chunk := list(islice(rest, _CHUNK)):
                rows = list(pool.map(lambda picture: _try(picture, decode, shape), chunk))
                bad += _count_bad(rows, skip_bad - bad, hint)
                # A picture left out keeps its row, so that position and row stay the same number.
                blank = np.zeros(shape, np.uint8)
                images.append(np.stack([blank if isinstance(row, UserError) else row for row in rows]))
                bad_rows = np.array([isinstance(row, UserError) for row in rows])
                labels.append(np.where(bad_rows, _LEFT_OUT, [picture.label for picture in chunk]))
                advance(len(chunk))
        images.finish()
        labels.finish()

    def finish(self, classes: Sequence[str], test_size: int | None = None) -> None:
        """Note class names, hashes, and the side of the central square that is tested on (None: all)."""
        splits = {}
        for split in SPLITS:
            paths = {kind: self._folder / f"{split}_{kind}.npy" for kind in ("images", "labels")}
            if paths["labels"].exists():
                splits[split] = {kind: digest(path) for kind, path in paths.items()}
        meta = {"format": _FORMAT, "classes": list(classes), "test_size": test_size, "splits": splits}
        (self._folder / "meta.json").write_text(json.dumps(meta, indent=1))


def build(root: Path, name: str, origin: str, fill: Callable[[Builder], None]) -> Path:
    """Make the store ROOT/NAME from what `origin` identifies, unless it is there already."""
    folder, part = root / name, root / f"{name}.part"
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root / f".{name}.lock"):
            if _origin(folder) == origin:
                return folder
            if _origin(part) != origin:
                shutil.rmtree(part, ignore_errors=True)
                part.mkdir()
                (part / "origin").write_text(origin)
            fill(Builder(part))
            open_store(part, name)
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(part, folder)
    except OSError as error:
        raise RunError(f"could not build {folder}: {error}; the same command goes on from there") from None
    return folder


def cache_name(path: Path, *options: object) -> str:
    """The store's name for data that has none: told apart by its path and options, readable in a listing."""
    key = hashlib.sha256(repr((str(path), *options)).encode()).hexdigest()[:12]
    return f"{re.sub('[^A-Za-z0-9]+', '-', path.stem).strip('-') or 'data'}-{key}"


def listing(files: Iterable[Path]) -> str:
    """Identifies files by name, size and time, without reading them."""
    lines = (f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def open_store(folder: Path, name: str, memory_budget: int | None = None) -> Dataset:
    """The data set in a folder; large arrays are memory-mapped."""
    budget = MEMORY_BUDGET if memory_budget is None else memory_budget
    try:
        meta = read_meta(folder)
        sets = {split: _read(folder, split, len(meta["classes"]), budget) for split in meta["splits"]}
        train, test, val = sets["train"], sets["test"], sets.get("val")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder} is damaged ({error}); remove it and get {name} again") from None
    if meta["test_size"]:
        side = meta["test_size"]
        test, val = test.center(side, side), val and val.center(side, side)
    return Dataset(name, train, test, val, tuple(meta["classes"]))


def read_meta(folder: Path) -> dict[str, Any]:
    """A store's meta.json: format, classes, test_size, splits with hashes."""
    meta: dict[str, Any] = json.loads((folder / "meta.json").read_text())
    if meta["format"] != _FORMAT:
        raise ValueError(f"format {meta['format']}, expected {_FORMAT}")
    return meta


def digest(path: Path, algorithm: str = "sha256") -> str:
    """A file's checksum."""
    result = hashlib.new(algorithm)
    size = path.stat().st_size
    with path.open("rb") as file, progress(f"checking {path.name}", size, is_bytes=True) as advance:
        while block := file.read(1 << 22):
            result.update(block)
            advance(len(block))
    return result.hexdigest()


def _read(folder: Path, split: str, classes: int, budget: int) -> ImageSet:
    path = folder / f"{split}_images.npy"
    mapped = "c" if path.stat().st_size > budget else None
    images = np.load(path, mmap_mode=mapped, allow_pickle=False)  # type: ignore[arg-type]
    labels = np.load(folder / f"{split}_labels.npy", allow_pickle=False)
    right = images.dtype == np.uint8 and images.ndim == 4 and labels.dtype == np.int64
    if not right or labels.shape != images.shape[:1]:
        raise ValueError(f"{split} does not hold uint8 images and as many labels")
    if len(labels) and not (labels.min() >= _LEFT_OUT and labels.max() < classes):
        raise ValueError(f"{split} has labels outside 0..{classes - 1}")
    whole = ImageSet(torch.from_numpy(images), torch.from_numpy(labels))
    return whole if (labels >= 0).all() else whole.subset((whole.labels >= 0).nonzero()[:, 0])


def _origin(folder: Path) -> str | None:
    return (folder / "origin").read_text() if (folder / "origin").exists() else None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time: the ranks of a distributed run may all find a store missing."""
    with path.open("a") as file:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _first_shape(pictures: Iterator[Picture], decode: Decoder, skip_bad: int, hint: str) -> tuple[int, ...]:
    rows = []
    for picture in pictures:
        row = _try(picture, decode)
        if not isinstance(row, UserError):
            return row.shape
        rows.append(row)
        _count_bad(rows, skip_bad, hint)
    raise UserError("there is no picture to read")


def _try(
    picture: Picture, decode: Decoder, shape: tuple[int, ...] | None = None
) -> NDArray[np.uint8] | UserError:
    try:
        row = decode(picture.file)
    except UserError as error:
        return UserError(f"{picture.name}: {error}")
    if shape is not None and row.shape != shape:
        return UserError(f"{picture.name}: {_size(row.shape)}, but the first picture has {_size(shape)}")
    return row


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[1]}x{shape[0]} pixels {'in grey' if shape[2] == 1 else 'in colour'}"


def _count_bad(rows: Sequence[NDArray[np.uint8] | UserError], allowed: int, hint: str) -> int:
    bad = [row for row in rows if isinstance(row, UserError)]
    if len(bad) > allowed:
        raise UserError(f"{bad[allowed]}{hint}")
    return len(bad)
