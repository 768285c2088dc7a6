"""A packed data set: ROOT/NAME/{train,val,test}_{images,labels}.npy and meta.json."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sora.data._npy import Header, read_header
from sora.data._progress import progress
from sora.data._store import Dataset, ImageSet
from sora.errors import UserError

MEMORY_BUDGET = 1 << 30
"""An array above this size stays on disk, memory-mapped."""
SPLITS = ("train", "val", "test")
FORMAT = 1
LEFT_OUT = -1
"""Label of a row whose picture was bad."""
DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, TokenError)
"""What reading a damaged store raises."""
NOT_OURS = "is no packed data set; move it elsewhere or choose another --data-dir"


def open_store(folder: Path, name: str) -> Dataset:
    """The data set in a folder; large arrays are memory-mapped."""
    _refuse_strange(folder)
    try:
        meta = read_meta(folder)
        sets = {split: _read(folder, split, len(meta["classes"])) for split in meta["splits"]}
        train, test, val, side = sets["train"], sets["test"], sets.get("val"), meta["test_size"]
    except DAMAGE as error:
        raise UserError(f"{folder} is damaged ({error}); remove it and get {name} again") from None
    if side:
        test, val = test.center(side, side), val and val.center(side, side)
    return Dataset(name, train, test, val, tuple(meta["classes"]), folder)


def survey(folder: Path) -> dict[str, int]:
    """Images in each split, from meta.json and headers alone; raises one of `DAMAGE` if it is damaged."""
    _refuse_strange(folder)
    meta, counts = read_meta(folder), {}
    for split in meta["splits"]:
        images, labels = (_header(folder / f"{split}_{kind}.npy") for kind in ("images", "labels"))
        _check(split, images, labels)
        counts[split] = meta.get("counts", {}).get(split, labels.shape[0])
    return counts


def _header(path: Path) -> Header:
    with path.open("rb") as file:
        header = read_header(file)
    if path.stat().st_size != header.start + math.prod(header.shape) * header.dtype.itemsize:
        raise ValueError(f"{path.name} breaks off")
    return header


def _check(split: str, images: Header | NDArray[Any], labels: Header | NDArray[Any]) -> None:
    right = images.dtype == np.uint8 and len(images.shape) == 4 and labels.dtype == np.int64
    if not right or labels.shape != images.shape[:1]:
        raise ValueError(f"{split} does not hold uint8 images and as many labels")


def _refuse_strange(folder: Path) -> None:
    """Raise if we never wrote here: to call it damaged would make the user remove it."""
    if folder.is_dir() and not (folder / "meta.json").exists() and origin_of(folder) is None:
        raise UserError(f"{folder} {NOT_OURS}")


def _read(folder: Path, split: str, classes: int) -> ImageSet:
    path = folder / f"{split}_images.npy"
    # "c": pages are private copies once written to, as torch wants writable memory and the file must stay.
    mapped = "c" if path.stat().st_size > MEMORY_BUDGET else None
    images = np.load(path, mmap_mode=mapped, allow_pickle=False)  # type: ignore[arg-type]
    labels = np.load(folder / f"{split}_labels.npy", allow_pickle=False)
    _check(split, images, labels)
    if len(labels) and not (labels.min() >= LEFT_OUT and labels.max() < classes):
        raise ValueError(f"{split} has labels outside 0..{classes - 1}")
    whole = ImageSet(torch.from_numpy(images), torch.from_numpy(labels))
    return whole if (labels >= 0).all() else whole.subset((whole.labels >= 0).nonzero()[:, 0])


def read_meta(folder: Path) -> dict[str, Any]:
    """A store's meta.json: format, classes, test_size, splits with hashes, counts."""
    meta: dict[str, Any] = json.loads((folder / "meta.json").read_text())
    if meta["format"] != FORMAT:
        raise ValueError(f"format {meta['format']}, expected {FORMAT}")
    return meta


def origin_of(folder: Path) -> str | None:
    """What a store, finished or not, was built from."""
    return (folder / "origin").read_text() if (folder / "origin").exists() else None


def is_store(folder: Path) -> bool:
    """Whether we packed this folder; another may hold somebody's originals."""
    return (folder / "origin").is_file() and (folder / "meta.json").is_file()


def digest(path: Path, algorithm: str = "sha256") -> str:
    """A file's checksum."""
    result, size = hashlib.new(algorithm), path.stat().st_size
    with path.open("rb") as file, progress(f"checking {path.name}", size, is_bytes=True) as advance:
        while block := file.read(1 << 22):
            result.update(block)
            advance(len(block))
    return result.hexdigest()


def listing(files: Iterable[Path]) -> str:
    """Identifies files by name, size and time, without reading them."""
    lines = (f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def cache_name(path: Path, *options: object) -> str:
    """A store's name for data that has none: told apart by path and options, readable in a listing."""
    key = hashlib.sha256(repr((str(path), *options)).encode()).hexdigest()[:12]
    return f"{re.sub('[^A-Za-z0-9]+', '-', path.stem).strip('-') or 'data'}-{key}"
