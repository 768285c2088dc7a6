"""A tree of class folders: which images there are, of which class and split."""

from __future__ import annotations

from pathlib import Path

import torch

from sora._seeds import mix
from sora.data.builder import Picture
from sora.data.splits import SPLIT_SEED, stratified
from sora.errors import UserError

SPLIT_NAMES = {"train": "train", "training": "train", "test": "test", "testing": "test"}
SPLIT_NAMES |= dict.fromkeys(("val", "valid", "validation"), "val")
_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}


def scan(path: Path) -> tuple[list[str], dict[str, list[Picture]]]:
    """Class names, and the images of each split."""
    if not path.is_dir():
        raise UserError(f"{path} is not a folder")
    parts = _splits(path)
    if "train" not in parts:
        _refuse_unknown_splits(path)
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


def _splits(path: Path) -> dict[str, Path]:
    """The folders of the splits; a folder `train` without folders inside, beside others, is a class."""
    folders = _folders(path)
    named = [folder for folder in folders if folder.name.lower() in SPLIT_NAMES]
    if len(named) < len(folders) and not any(_folders(folder) for folder in named):
        return {}
    parts: dict[str, Path] = {}
    for folder in named:
        other = parts.setdefault(SPLIT_NAMES[folder.name.lower()], folder)
        if other is not folder:
            raise UserError(f"{path} contains {other.name} and {folder.name}, which mean the same; keep one")
    return parts


def _scan_classes(path: Path, known: list[str] | None = None) -> tuple[list[str], list[Picture]]:
    folders = _folders(path)
    classes = [folder.name for folder in folders] if known is None else known
    if len(classes) < 2:
        raise UserError(f"{path} contains {len(classes)} class folders; at least 2 are needed")
    pictures = []
    for folder in folders:
        if folder.name not in classes:
            raise UserError(f"{folder} is a class that the training set does not have")
        files = [f for f in folder.rglob("*") if f.suffix.lower() in _SUFFIXES and f.name[0] != "."]
        files.sort(key=lambda file: file.parts)
        for file in files:
            if not file.is_file():
                raise UserError(f"{file} is not a regular file; remove it")
        if not files:
            raise UserError(f"{folder} contains no images; remove the folder or fill it")
        pictures += [Picture(str(file), file, classes.index(folder.name)) for file in files]
    return classes, pictures


def _refuse_unknown_splits(path: Path) -> None:
    """Raise if the folders look like splits: no images of their own, and the same folders inside."""
    folders = _folders(path)
    inside = {tuple(folder.name for folder in _folders(each)) for each in folders}
    direct = any(file.suffix.lower() in _SUFFIXES for each in folders for file in each.iterdir())
    if len(folders) > 1 and len(inside) == 1 and len(next(iter(inside))) > 1 and not direct:
        names, classes = (", ".join(list(part)[:3]) for part in ([f.name for f in folders], *inside))
        raise UserError(
            f"{path}: the folders {names} all contain the folders {classes}; if they are splits, name them"
            " train, val and test"
        )


def _folders(path: Path) -> list[Path]:
    """The folders in a folder, sorted by name; paths themselves sort differently on Windows."""
    folders = [f for f in path.iterdir() if f.is_dir() and f.name[0] not in "._"]
    return sorted(folders, key=lambda folder: folder.name)


def _split(pictures: list[Picture]) -> dict[str, list[Picture]]:
    """A fifth of each class for testing, by a constant seed."""
    labels = torch.tensor([picture.label for picture in pictures])
    test = set(stratified(labels, len(pictures) // 5, mix(SPLIT_SEED, len(pictures))).tolist())
    parts: dict[str, list[Picture]] = {"train": [], "test": []}
    for position, picture in enumerate(pictures):
        parts["test" if position in test else "train"].append(picture)
    return parts
