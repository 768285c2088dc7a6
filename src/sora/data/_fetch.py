"""Downloads: resumed where they stopped, verified by checksum, renamed only when complete."""

from __future__ import annotations

import http.client
import os
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO

from sora.data._base import Remote
from sora.data._progress import progress
from sora.data._store import digest
from sora.errors import RunError

ATTEMPTS, PAUSE, TIMEOUT = 4, 2.0, 60.0
_BLOCK = 1 << 18
NETWORK_ERRORS = (
    urllib.error.URLError,
    http.client.HTTPException,
    ConnectionError,
    TimeoutError,
    ssl.SSLError,
)


def fetch(remote: Remote, folder: Path) -> Path:
    """The file, from an earlier download or over the network."""
    target = folder / remote.filename
    part = target.with_name(target.name + ".part")
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _download(remote.url, part)
        try:
            verify(part, remote.checksum)
        except RunError:
            part.unlink()  # the next attempt starts over
            raise
        os.replace(part, target)
    return target


def verify(path: Path, checksum: str) -> None:
    """Raise unless the file has this checksum."""
    algorithm, _, expected = checksum.partition(":")
    actual = digest(path, algorithm)
    if actual != expected:
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
        except NETWORK_ERRORS as error:
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
        raise RunError(
            f"cannot write {file.name}: {error.strerror}; run the same command again to resume"
        ) from None
