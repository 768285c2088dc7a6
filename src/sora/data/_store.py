"""The packed data set on disk: ROOT/NAME/{train,val,test}_{images,labels}.npy, meta.json and origin."""

import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import torch

from sora._files import CLASSES, TEXT, open_regular, parse_json, read_bytes, read_text, write_text
from sora.data.dataset import Dataset, ImageSet, check_same_size
from sora.data.npz import read_header
from sora.errors import RunError, UserError

MEMORY_BUDGET = 1 << 30  # an array of more bytes than this stays on disk, memory-mapped
FORMAT = 1
LEFT_OUT = -1  # label of the blank row of an unreadable image
DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, TokenError, RecursionError)
"""The exceptions that reading a damaged store raises."""
NOT_OURS = "is not a packed data set; move it elsewhere or choose another --data-dir"


def open_store(folder: Path, name: str) -> Dataset:
    """Open the data set in a folder; large arrays are memory-mapped."""
    _refuse_foreign(folder)
    try:
        meta = read_meta(folder)
        classes = tuple(map(str, meta["classes"]))
        if len(classes) > CLASSES.value:
            raise CLASSES.refusal(f"{len(classes):,} class names")
        sets = {split: _read(folder, split, len(classes), meta["splits"][split]) for split in meta["splits"]}
        train, test, val, side = sets["train"], sets["test"], sets.get("val"), meta["test_size"]
        if changed := changed_arrays(folder, unread=True):
            raise ValueError(f"{changed[0]} has changed since it was built")
    except DAMAGE as error:
        kind = UserError if folder.suffix == ".part" else RunError  # being built: its source is wrong
        raise kind(f"{folder} is damaged ({error}); remove it and get {name} again") from None
    if not side:
        check_same_size(sets)
    else:
        test, val = test.center(side, side), val and val.center(side, side)
    return Dataset(name, train, test, val, classes, folder)


def changed_arrays(folder: Path, *, unread: bool) -> list[str]:
    """Name the arrays that do not match their hashes; `unread` if all files look as when last verified."""
    splits, now, verified = read_meta(folder)["splits"], _state(folder), folder / "verified"
    if unread and verified.exists() and read_bytes(verified, TEXT) == now.encode():
        return []
    hashes = {f"{split}_{kind}.npy": splits[split][kind] for split in splits for kind in ("images", "labels")}
    changed = [name for name, recorded in hashes.items() if digest(folder / name) != recorded]
    if not unread and not changed:  # loading only reads: a stored run may name any data folder
        with suppress(OSError):
            write_text(verified, now)
    return changed


def _state(folder: Path) -> str:
    return listing([folder / "meta.json", *sorted(folder.glob("*.npy"))], str(folder))


def survey(folder: Path) -> dict[str, int]:
    """Count the images in each split, from meta.json and headers alone; raises one of `DAMAGE`."""
    _refuse_foreign(folder)
    meta = read_meta(folder)
    rows = {split: _check_headers(folder, split) for split in meta["splits"]}
    return {split: meta.get("counts", {}).get(split, count) for split, count in rows.items()}


def _check_headers(folder: Path, split: str) -> int:
    """Raise unless the headers match each other and the files; return the number of rows."""
    headers = []
    for path in (folder / f"{split}_images.npy", folder / f"{split}_labels.npy"):
        with open_regular(path) as file:
            headers.append(read_header(file))
        if path.stat().st_size != headers[-1].start + headers[-1].nbytes:
            raise ValueError(f"{path.name} is truncated")
    images, labels = headers
    valid = images.dtype == np.uint8 and len(images.shape) == 4 and labels.dtype == np.int64
    if not valid or labels.shape != images.shape[:1]:
        raise ValueError(f"{split} does not contain uint8 images and as many labels")
    return labels.shape[0]


def _refuse_foreign(folder: Path) -> None:
    """Raise if this package did not create the folder: calling it damaged would make the user remove it."""
    if folder.is_dir() and not (folder / "meta.json").exists() and origin_of(folder) is None:
        raise UserError(f"{folder} {NOT_OURS}")


def _read(folder: Path, split: str, classes: int, hashes: Mapping[str, str]) -> ImageSet:
    _check_headers(folder, split)  # first, because NumPy allocates what they declare
    path = folder / f"{split}_images.npy"
    # "c", copy on write: torch requires writable memory, and the file must not change.
    mode = "c" if path.stat().st_size > MEMORY_BUDGET else None
    images = np.load(path, mmap_mode=mode, allow_pickle=False)  # type: ignore[arg-type]
    labels = np.load(folder / f"{split}_labels.npy", allow_pickle=False)
    if len(labels) and not (labels.min() >= LEFT_OUT and labels.max() < classes):
        raise ValueError(f"{split} has labels outside 0..{classes - 1}")
    whole = ImageSet(torch.from_numpy(images), torch.from_numpy(labels), images_hash=hashes["images"])
    return whole if (labels >= 0).all() else whole.subset((whole.labels >= 0).nonzero()[:, 0])


def read_meta(folder: Path) -> dict[str, Any]:
    """Read a store's meta.json: format, classes, test_size, splits with hashes, counts and checksum."""
    meta: dict[str, Any] = parse_json(read_text(folder / "meta.json", TEXT))
    if meta.pop("sha256", None) not in (None, hashlib.sha256(json.dumps(meta).encode()).hexdigest()):
        raise ValueError("meta.json does not match its checksum")
    if meta["format"] != FORMAT:
        raise ValueError(f"format {meta['format']}, expected {FORMAT}")
    return meta


def write_meta(folder: Path, meta: Mapping[str, Any]) -> None:
    """Write meta.json with its own checksum, for arrays whose hashes have just been computed."""
    meta = {"format": FORMAT, **meta}
    meta["sha256"] = hashlib.sha256(json.dumps(meta).encode()).hexdigest()
    (folder / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")
    (folder / "verified").write_text(_state(folder), encoding="utf-8")


def origin_of(folder: Path) -> str | None:
    """Return what a store, complete or not, was built from; None if this is not a store."""
    return read_text(folder / "origin", TEXT) if (folder / "origin").exists() else None


def is_store(folder: Path) -> bool:
    """Tell whether this package packed the folder; any other may contain a user's originals."""
    return (folder / "origin").is_file() and (folder / "meta.json").is_file()


def digest(path: Path, algorithm: str = "sha256") -> str:
    """Return a file's checksum."""
    result, size = hashlib.new(algorithm), path.stat().st_size
    with open_regular(path) as file, progress(f"checking {path.name}", size, is_bytes=True) as advance:
        while block := file.read(1 << 22):
            result.update(block)
            advance(len(block))
    return result.hexdigest()


def listing(files: Iterable[Path], prefix: str = "") -> str:
    """Identify files by name (without `prefix`), size and times, without reading them."""
    facts = ((str(file).removeprefix(prefix), file.stat()) for file in files)
    # A program can restore the time of an edited file, but not the time of its last change.
    lines = (f"{name} {info.st_size} {info.st_mtime_ns} {info.st_ctime_ns}" for name, info in facts)
    return hashlib.sha256(os.fsencode("\n".join(lines))).hexdigest()  # names need not be UTF-8


def cache_name(path: Path, *options: object) -> str:
    """Name the store of data without a registered name: unique per path and options, and readable."""
    key = hashlib.sha256(repr((str(path), *options)).encode()).hexdigest()[:12]
    return f"{re.sub('[^A-Za-z0-9]+', '-', path.stem).strip('-') or 'data'}-{key}"


@contextmanager
def progress(
    what: str, total: int | None, done: int = 0, *, is_bytes: bool = False
) -> Iterator[Callable[[int], None]]:
    """Show a bar from `done` to `total`, on a terminal only; the yielded function advances it."""
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    from sora._console import Console

    amount = DownloadColumn() if is_bytes else MofNCompleteColumn()
    columns = ("{task.description}", BarColumn(), amount, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(what, total=total, completed=done)
        yield lambda step: bar.advance(task, step)
