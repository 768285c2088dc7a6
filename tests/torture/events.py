"""Signals at exact moments: before the n-th change that a process makes to the file system.

Python announces each change to audit hooks (PEP 578) before it happens, so a process can be killed between
any two of them, e.g. between a rename and the link that follows, without touching the code under test.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path

CHANGES = (
    "os.rename", "os.link", "os.symlink", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.utime",
    "fcntl.flock", "fcntl.lockf", "shutil.rmtree", "shutil.copyfile", "shutil.move", "tempfile.mkstemp",
)  # fmt: skip
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def is_change(event: str, args: tuple[object, ...]) -> bool:
    """Whether an audit event announces a change to the file system."""
    if event == "open":
        flags = args[2]
        return isinstance(flags, int) and bool(flags & _WRITING) and not str(args[0]).startswith("/dev/")
    return event in CHANGES


def signal_before(number: int, change: int, function: Callable[[], int]) -> Callable[[], int]:
    """`function`, but this process gets signal `number` before its change `change` (counted from 0)."""
    changes = itertools.count()

    def send(_: str) -> None:
        if next(changes) == change:
            os.kill(os.getpid(), number)

    return _watched(function, send)


def recording(function: Callable[[], int], log: Path) -> Callable[[], int]:
    """`function`, which also writes the kinds of all its changes to `log`, one per line."""
    kinds: list[str] = []

    def run() -> int:
        code = _watched(function, kinds.append)()
        log.write_text("\n".join(kinds))
        return code

    return run


def _watched(function: Callable[[], int], on_change: Callable[[str], None]) -> Callable[[], int]:
    """`function`, with `on_change` called before each of its changes; the hook stays in the process."""

    def hook(event: str, args: tuple[object, ...]) -> None:
        if is_change(event, args):
            on_change(event)

    def run() -> int:
        sys.addaudithook(hook)
        return function()

    return run
