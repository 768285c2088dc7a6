"""Reading files of unknown origin: regular files only, up to a stated size.

Opening a FIFO waits for a writer, and a device may never end.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from sora.errors import UserError, short


@dataclass(frozen=True)
class Limit:
    """An upper bound on what a file may make the program read or allocate.

    Args:
        default: The bound.
        unit: What it counts.
        variable: The environment variable that replaces the bound, if there is one.
    """

    default: int
    unit: str
    variable: str = ""

    @property
    def value(self) -> int:
        """The bound that holds now."""
        text = os.environ.get(self.variable, str(self.default))
        if not text.isdecimal() or int(text) < 1:
            raise UserError(f"{self.variable} is {text!r}; expected a whole number, 1 or more")
        return int(text)

    def refusal(self, what: str) -> UserError:
        """Return the error for something that exceeds the bound."""
        remedy = f"; set {self.variable} to change it" if self.variable else ""
        return UserError(f"{what} exceeds the limit of {self.value:,} {self.unit}{remedy}")


PIXELS = Limit(1 << 26, "pixels", "SORA_MAX_PIXELS")
"""Pixels of an image file, before and after it is resized."""
STORED_PIXELS = Limit(1 << 22, "pixels", "SORA_MAX_STORED_PIXELS")
"""Pixels of an image as it is trained on."""
UNPACKED = Limit(1 << 29, "bytes", "SORA_MAX_UNPACKED")
"""Size of an unpacked archive, and of a single file that is read as a whole."""
SETTINGS = Limit(1 << 16, "bytes")
"""Size of a settings file; the YAML parser needs a second for ten times that."""
TEXT = Limit(1 << 20, "bytes")
"""Size of class names and other short texts."""
PARAMETERS = Limit(1 << 29, "parameters")
"""Size of a model of this package, checked before it is built."""
CLASSES = Limit(100_000, "classes")
"""Number of classes of a data set."""


def absolute(text: str | Path) -> Path:
    """Return a path that a user or a file names, without links and `~`."""
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


def _refuse_special(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise UserError(f"{path} is a folder; expected a file")
    if not stat.S_ISREG(mode):
        raise UserError(f"{path} is not a regular file; FIFOs, sockets and devices are not read")


def read_bytes(path: Path, limit: Limit = UNPACKED) -> bytes:
    """Read a whole file."""
    with open_regular(path) as file:
        content = file.read(limit.value + 1)
    if len(content) > limit.value:
        raise limit.refusal(str(path))
    return content


def read_text(path: Path, limit: Limit = UNPACKED) -> str:
    """Read a whole UTF-8 file."""
    return read_bytes(path, limit).decode()


def parse_json(text: str | bytes) -> Any:
    """Parse JSON from a file; a text nested too deeply is a ValueError like any other mistake in it."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
