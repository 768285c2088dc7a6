"""Locks that end with the process that holds them, however it ends.

The operating system owns a lock, so a killed process leaves none behind; the file itself stays. Over NFS,
Linux passes the lock to the server, where it also holds against other machines; a mount with `nolock` or
`local_lock=flock` guards against processes of the same machine only, and a machine that loses power keeps its
lock until the server notices. A file system without locks is used without one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from sora._files import create_folder, refuse_link
from sora.errors import UserError

NAME = ".lock"  # of the file that locks a folder
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


@contextmanager
def locked(path: Path, seconds: float = -1, note: str = "") -> Iterator[None]:
    """Hold the exclusive lock on a file, which is created if it does not exist and stays afterwards.

    Args:
        path: The file; a link could lead anywhere and is refused.
        seconds: How long to wait for another process; -1: until it ends.
        note: What the file says while it is locked.

    Raises:
        Timeout: Another process still holds the lock.
    """

    def write_note(descriptor: int) -> None:
        if note:
            os.ftruncate(descriptor, 0)
            os.write(descriptor, note.encode())

    refuse_link(path)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(FileLock(path, seconds, preserve_lock_file=True, on_acquired=write_note))
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        yield


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which is created if need be, and removed again if nothing is written to it.

    Raises:
        UserError: Another process holds it; the message names that process.
    """
    file, is_new = folder / NAME, not folder.exists()
    with contextlib.ExitStack() as stack:
        while True:
            create_folder(folder)
            try:
                stack.enter_context(locked(file, 0, f"process {os.getpid()} on {platform.node()}\n"))
                break
            except FileNotFoundError:  # another process has just removed the folder, which it did not use
                continue
            except Timeout:
                if file.exists():  # not removed by the process that had it
                    raise UserError(
                        f"{folder} is in use by another process ({_owner(file)}); wait until it ends or"
                        " choose another --out"
                    ) from None
        if is_new:
            stack.callback(_remove_if_unused, folder)
        yield


def wait_until_free(folder: Path, seconds: float) -> None:
    """Give the process that holds the lock of a folder, if any, some time to end."""
    if (folder / NAME).exists():
        with contextlib.suppress(Timeout, FileNotFoundError), locked(folder / NAME, seconds):
            pass


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
