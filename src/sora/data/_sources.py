"""Data sets by name."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from sora.data import digits
from sora.data._store import Dataset
from sora.errors import unknown

_SOURCES: dict[str, Callable[[Path], Dataset]] = {"digits": digits.load}


def names() -> list[str]:
    """Every data set that has a name of its own."""
    return list(_SOURCES)


def load(name: str, root: str | Path | None = None) -> Dataset:
    """The data set called `name`, from the folder that holds the data sets (see `data_root`)."""
    check_name(name)
    return _SOURCES[name](data_root(root))


def check_name(name: str) -> None:
    """Raise if no data set is called that."""
    if name not in _SOURCES:
        raise unknown("data set", name, names())


def data_root(root: str | Path | None = None) -> Path:
    """Where data sets live: the argument, else $SORA_DATA, else the user's cache folder."""
    if root is not None:
        return Path(root).expanduser()
    if os.environ.get("SORA_DATA"):
        return Path(os.environ["SORA_DATA"]).expanduser()
    if sys.platform == "win32":
        cache = Path(os.environ.get("LOCALAPPDATA", "~/AppData/Local"))
    elif sys.platform == "darwin":
        cache = Path("~/Library/Caches")
    else:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return cache.expanduser() / "sora"
