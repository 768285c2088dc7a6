"""What is here, told from headers alone, and what could be: where each data set comes from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sora.data import digits, disk
from sora.data._sources import SOURCES, data_root, ways
from sora.data._store import Dataset


@dataclass(frozen=True)
class Entry:
    """A line of the inventory."""

    name: str
    images: dict[str, int]
    """In each split; empty if the data set is not here, or damaged."""
    megabytes: float
    """On disk."""
    where: str
    damaged: str | None = None
    """What is wrong with it."""


def inventory(root: str | Path | None = None) -> list[Entry]:
    """Every named data set and every packed one of the user's own: what is here, how large, where."""
    home = data_root(root)
    own = sorted(meta.parent.name for meta in home.glob("*/meta.json") if meta.parent.suffix != ".part")
    entries = [Entry("digits", dict(digits.COUNTS), 0.0, "built in")]
    for name in [*SOURCES, *(packed for packed in own if packed not in SOURCES)]:
        entries.append(_look(name, home / name) if (home / name).is_dir() else Entry(name, {}, 0.0, "-"))
    return entries


def entry(dataset: Dataset) -> Entry:
    """The line of a data set that is loaded."""
    if dataset.folder is not None:
        return _look(dataset.name, dataset.folder)
    sets = {"train": dataset.train, "val": dataset.val, "test": dataset.test}
    images = {split: len(images) for split, images in sets.items() if images is not None}
    return Entry(dataset.name, images, 0.0, dataset.name.partition(":")[2] or "built in")


def about(name: str) -> dict[str, Any]:
    """Where a data set with a name of its own comes from, what it holds, under what terms, how to get it."""
    if name == "digits":
        return {"name": name, "images": dict(digits.COUNTS), "from": ["scikit-learn, built in"]}
    source = SOURCES[name]
    return {
        "name": name,
        "images": dict(source.counts),
        "from": [remote.url for remote in source.files] or ["your own copy"],
        "licence": source.licence,
        "get": [text.replace("`", "") for text in ways(source).values()],
    }


def _look(name: str, folder: Path) -> Entry:
    size = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
    try:
        return Entry(name, disk.survey(folder), size, str(folder))
    except disk.DAMAGE as error:  # one bad store must not hide the others
        return Entry(name, {}, size, str(folder), damaged=str(error))
