"""`folder:PATH`: your own pictures, one folder a class.

PATH holds `train`, `test` and perhaps `val` folders of class folders, or class folders alone; then a fifth
of each class, always the same, is the test set. Options follow a question mark:
`folder:PATH?size=64&mode=rgb&skip-bad=3`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import parse_qsl

import torch

from sora._seeds import mix
from sora.data import disk, pack
from sora.data._store import SPLIT_SEED, Dataset, stratified
from sora.data.images import decode
from sora.data.pack import Builder, Picture, in_order
from sora.errors import UserError, unknown

SPLIT_NAMES = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
_OPTIONS = ("size", "mode", "skip-bad")
_HINT = "; ?size=N resizes all, ?mode=rgb or ?mode=grey converts all, ?skip-bad=N leaves out up to N"


@dataclass(frozen=True)
class Request:
    """What `folder:...` asks for."""

    path: Path
    size: int | None = None
    """Side of the square that every picture becomes."""
    mode: str | None = None
    """`rgb` or `grey`: what every picture becomes."""
    skip_bad: int = 0
    """How many unreadable or odd pictures to leave out before it is an error."""

    @classmethod
    def parse(cls, text: str) -> Request:
        """From PATH?OPTIONS."""
        place, _, query = text.partition("?")
        options = dict(parse_qsl(query, keep_blank_values=True))
        for key, value in options.items():
            if key not in _OPTIONS:
                raise unknown("folder option", key, _OPTIONS)
            if key == "mode" and value not in ("rgb", "grey"):
                raise unknown("mode", value, ("rgb", "grey"))
            if key != "mode" and not (value.isdecimal() and 0 < int(value) <= 1_000_000):
                raise UserError(f"folder option {key}={value} is not a positive whole number")
        size = int(options["size"]) if "size" in options else None
        path = Path(place).expanduser().resolve()
        return cls(path, size, options.get("mode"), int(options.get("skip-bad", 0)))


def load(text: str, root: Path) -> Dataset:
    """The data set in a folder; its decoded pictures are kept under `root` until the folder changes."""
    asked = Request.parse(text)
    classes, splits = scan(asked.path)

    def fill(builder: Builder) -> None:
        read = partial(decode, size=asked.size, mode=asked.mode)
        for split, pictures in splits.items():
            builder.stream(split, len(pictures), in_order(pictures), read, asked.skip_bad, _HINT)
        builder.finish(classes)

    origin = disk.listing(Path(p.name) for pictures in splits.values() for p in pictures)
    name = disk.cache_name(asked.path, asked.size, asked.mode, asked.skip_bad)
    store = pack.build(root, name, origin, fill)
    dataset = disk.open_store(store, f"folder:{text}")
    for split, pictures in splits.items():
        kept = getattr(dataset, split)
        if len(kept) < len(pictures):
            log = logging.getLogger(__name__)
            log.warning("%s: left out %d bad %s pictures", asked.path, len(pictures) - len(kept), split)
    return dataset


def scan(path: Path) -> tuple[list[str], dict[str, list[Picture]]]:
    """Class names, and the pictures of each split."""
    if not path.is_dir():
        raise UserError(f"{path} is not a folder")
    parts = {SPLIT_NAMES[folder.name]: folder for folder in _folders(path) if folder.name in SPLIT_NAMES}
    if "train" not in parts:
        classes, everything = _scan_classes(path)
        return classes, _split(everything)
    if "test" not in parts and "val" in parts:
        parts["test"] = parts.pop("val")
    classes, train = _scan_classes(parts["train"])
    if "test" not in parts:
        return classes, _split(train)
    return classes, {"train": train} | {
        split: _scan_classes(parts[split], classes)[1] for split in ("val", "test") if split in parts
    }


def _scan_classes(path: Path, known: list[str] | None = None) -> tuple[list[str], list[Picture]]:
    folders = _folders(path)
    classes = [folder.name for folder in folders] if known is None else known
    if len(classes) < 2:
        raise UserError(f"{path} holds {len(classes)} class folders; at least 2 are needed")
    pictures = []
    for folder in folders:
        if folder.name not in classes:
            raise UserError(f"{folder} is a class that the training set does not have")
        files = sorted(f for f in folder.rglob("*") if f.suffix.lower() in _SUFFIXES and f.name[0] != ".")
        if not files:
            raise UserError(f"{folder} holds no pictures; remove the folder or fill it")
        pictures += [Picture(str(file), file, classes.index(folder.name)) for file in files]
    return classes, pictures


def _folders(path: Path) -> list[Path]:
    return sorted(f for f in path.iterdir() if f.is_dir() and f.name[0] not in "._")


def _split(pictures: list[Picture]) -> dict[str, list[Picture]]:
    """A fifth of each class for testing, by a constant seed."""
    labels = torch.tensor([picture.label for picture in pictures])
    test = set(stratified(labels, len(pictures) // 5, mix(SPLIT_SEED, len(pictures))).tolist())
    parts: dict[str, list[Picture]] = {"train": [], "test": []}
    for position, picture in enumerate(pictures):
        parts["test" if position in test else "train"].append(picture)
    return parts
