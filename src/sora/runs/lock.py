"""A lock on a folder that ends with the process that holds it, however that process ends.

The operating system owns the lock, so a killed process leaves none behind; the file itself stays. Over NFS,
Linux passes the lock to the server, where it also holds against other machines; a mount with `nolock` or
`local_lock=flock` guards against processes of the same machine only, and a machine that loses power keeps its
lock until the server notices.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sora._files import create_folder
from sora._locks import POLL, open_lock, try_lock
from sora.errors import UserError

NAME = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which is created if need be, and removed again if nothing is written to it.

    Raises:
        UserError: Another process holds it; the message names that process.
    """
    is_new = not folder.exists()
    handle = _acquire(folder)
    try:
        os.ftruncate(handle, 0)
        os.write(handle, f"process {os.getpid()} on {platform.node()}\n".encode())
        try:
            yield
        finally:
            if is_new:
                _remove_if_unused(folder)
    finally:
        os.close(handle)  # which ends the lock


def wait_until_free(folder: Path, seconds: float) -> None:
    """Give the process that holds the lock of a folder, if any, some time to end."""
    end = time.monotonic() + seconds
    file = folder / NAME
    while file.exists() and time.monotonic() < end:
        handle = open_lock(file)
        try:
            if try_lock(handle):
                return
        finally:
            os.close(handle)
        time.sleep(POLL)


def _acquire(folder: Path) -> int:
    """The lock file of a folder, opened and locked."""
    file = folder / NAME
    while True:
        create_folder(folder)
        try:
            handle = open_lock(file)
        except FileNotFoundError:  # another process has just removed the folder, which it did not use
            continue
        if not try_lock(handle):
            os.close(handle)
            raise UserError(
                f"{folder} is in use by another process ({_owner(file)}); wait until it ends or choose"
                " another --out"
            )
        if file.exists() and os.path.samestat(os.fstat(handle), file.stat()):
            return handle
        os.close(handle)  # the file was removed between opening and locking it


def _remove_if_unused(folder: Path) -> None:
    """Remove a folder that holds nothing but its lock, because the run it was created for was refused."""
    with contextlib.suppress(OSError):
        if [entry.name for entry in folder.iterdir()] == [NAME]:
            (folder / NAME).unlink()
            folder.rmdir()


def _owner(file: Path) -> str:
    try:
        return file.read_text().strip() or "it has just started"
    except (OSError, UnicodeDecodeError):
        return "unknown"
