"""One process at a time: a lock that the system releases when its process ends, however it ends.

A file system without locks is used without one.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sora._files import refuse_link

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
    import msvcrt

POLL = 0.1  # seconds
_HELD = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)  # another process has the lock
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
_BEHIND_TEXT = 1 << 20  # Windows locks bytes against reading too: not those that a file contains


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file, which is created if it does not exist and stays afterwards."""
    handle = open_lock(path)
    try:
        while not try_lock(handle):
            time.sleep(POLL)
        yield
    finally:
        os.close(handle)  # which releases the lock


def open_lock(path: Path) -> int:
    """Open a file to lock, creating it if need be; a link could lead anywhere and is not followed."""
    refuse_link(path)
    return os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)


def try_lock(descriptor: int) -> bool:
    """Take the exclusive lock on an open file; False if another process has it."""
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            os.lseek(descriptor, _BEHIND_TEXT, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            os.lseek(descriptor, 0, os.SEEK_SET)
    except OSError as error:
        if error.errno in _HELD:
            return False
        if error.errno not in _NO_LOCKS:
            raise
    return True
