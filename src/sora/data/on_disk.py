"""Which data sets are on this machine, read from file headers alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sora.data import _store
from sora.data._base import data_root, info, names
from sora.data.dataset import Dataset


@dataclass(frozen=True)
class Stored:
    """One line of the inventory."""

    name: str
    images: dict[str, int]
    """Number in each split; empty if the data set is absent or damaged."""
    megabytes: float
    """Size on disk."""
    where: str
    damaged: str | None = None
    """What is wrong with it, if anything."""


def inventory(root: str | Path | None = None) -> list[Stored]:
    """Every registered data set, and every packed one of the user's own images."""
    home = data_root(root)
    registered = [info(name) for name in names() if ":" not in name]
    lines = [
        _describe(entry.name, home / entry.name)
        if entry.packed is not None
        else Stored(entry.name, dict(entry.counts), 0.0, "built in")
        for entry in registered
    ]
    folders = sorted(meta.parent for meta in home.glob("*/meta.json") if meta.parent.suffix != ".part")
    known = {entry.name for entry in registered}
    return lines + [_describe(folder.name, folder) for folder in folders if folder.name not in known]


def stored(dataset: Dataset) -> Stored:
    """The inventory line of a data set that is loaded."""
    if dataset.folder is not None:
        return _describe(dataset.name, dataset.folder)
    images = {split: len(images) for split, images in dataset.splits.items()}
    return Stored(dataset.name, images, 0.0, dataset.name.partition(":")[2] or "built in")


def _describe(name: str, folder: Path) -> Stored:
    if not folder.is_dir():
        return Stored(name, {}, 0.0, "-")
    size = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
    try:
        return Stored(name, _store.survey(folder), size, str(folder))
    except _store.DAMAGE as error:  # one bad store must not hide the others
        return Stored(name, {}, size, str(folder), damaged=str(error))
