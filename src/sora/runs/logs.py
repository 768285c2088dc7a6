"""Logs of one JSON object per line, appended to while a run trains."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sora._files import plain, refuse_link
from sora._reading import open_regular, parse_json, read_text


class Log:
    """One log opened for appending; a checkpoint stores its length and a resumed run truncates to it.

    Args:
        path: The file.
        length: Bytes to keep of an existing file.
    """

    def __init__(self, path: Path, length: int = 0) -> None:
        refuse_link(path)
        self._handle = path.open("ab")
        self._handle.truncate(length)
        self._handle.seek(length)

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one line."""
        self._handle.write((json.dumps(plain(row), allow_nan=False) + "\n").encode())
        self._handle.flush()

    def length(self) -> int:
        """Bytes written so far."""
        return self._handle.tell()

    def close(self) -> None:
        """Close the file."""
        self._handle.close()


def read_log(path: Path) -> list[dict[str, Any]]:
    """All complete lines of a log, also of one that is still being written; empty if there is no file."""
    if not path.exists():
        return []
    return [parse_json(line) for line in read_text(path).splitlines() if line.endswith("}")]


def read_last_line(path: Path) -> dict[str, Any] | None:
    """The last complete line of a log, without reading the rest of it; None if there is none."""
    if not path.exists():
        return None
    with open_regular(path) as file:
        file.seek(max(0, path.stat().st_size - _TAIL))
        lines = file.read().splitlines(keepends=True)
    complete = [line for line in lines if line.endswith(b"}\n")]
    try:
        return dict(json.loads(complete[-1])) if complete else None
    except ValueError:  # a line longer than what was read
        return None


_TAIL = 1 << 16  # bytes; a line has some hundred
