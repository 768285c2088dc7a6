"""One process at a time: a lock that the system releases when its process ends, however it ends."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file, which is created if it does not exist and stays afterwards."""
    with path.open("a") as file:
        _lock(file.fileno())
        yield  # closing the file releases the lock


def _lock(descriptor: int) -> None:
    """Wait for an exclusive lock on an open file."""
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        os.lseek(descriptor, 0, os.SEEK_SET)
        while True:
            try:
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
                return
            except OSError:
                time.sleep(0.1)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
