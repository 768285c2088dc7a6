"""Reading files of unknown origin: regular files only, up to a stated size.

Opening a FIFO waits for a writer, and a device may never end.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from sora._limits import UNPACKED, Limit
from sora.errors import UserError, short


def absolute(text: str | Path) -> Path:
    """A path that a user or a file names, without links and `~`; a `UserError` if there is no such place."""
    try:
        return Path(text).expanduser().resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, an unknown user, a NUL byte
        raise UserError(f"{short(str(text))} is not a path: {error}") from None


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading; anything but a regular file is refused without waiting for it."""
    # Checked before opening, because opening a device can have effects, and after it, because a file can be
    # exchanged in between; O_NONBLOCK keeps the opening of a FIFO from waiting.
    _refuse_special(path, path.stat().st_mode)
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    file = os.fdopen(descriptor, "rb")
    try:
        _refuse_special(path, os.fstat(descriptor).st_mode)
    except UserError:
        file.close()
        raise
    return file


def read_bytes(path: Path, limit: Limit = UNPACKED) -> bytes:
    """A whole file."""
    with open_regular(path) as file:
        content = file.read(limit.value + 1)
    if len(content) > limit.value:
        raise limit.refusal(str(path))
    return content


def read_text(path: Path, limit: Limit = UNPACKED) -> str:
    """A whole UTF-8 file."""
    return read_bytes(path, limit).decode()


def parse_json(text: str | bytes) -> Any:
    """JSON from a file; a text nested too deeply is a ValueError like any other mistake in it."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse_special(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise UserError(f"{path} is a folder; expected a file")
    if not stat.S_ISREG(mode):
        raise UserError(f"{path} is not a regular file; FIFOs, sockets and devices are not read")
