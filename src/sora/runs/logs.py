"""Logs of one JSON object per line, appended to while a run trains."""

import hashlib
import json
import os
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sora._files import JSON, check_json, open_regular, parse_json, plain, read_bytes, refuse_link
from sora.errors import RunError, UserError, short
from sora.runs.weights import digest_start, new_digest

LogName = Literal["metrics", "evals", "events", "monitors"]
LOGS: tuple[LogName, ...] = ("metrics", "evals", "events", "monitors")
_TAIL = 1 << 16  # bytes; a line has some hundred


class LogStart(NamedTuple):
    """The part of a log that a resumed run keeps."""

    length: int
    digest: hashlib.blake2b


def intact_start(path: Path, length: int, digest: str) -> LogStart:
    """Return the part of a log that existed when a checkpoint stored its length in bytes and its checksum.

    A log that is missing (unless the length is 0), too short or changed is a `RunError`.
    """
    found = path.stat().st_size if path.exists() else 0
    if found < length:
        state = f"has {found} bytes" if path.exists() else "is missing"
        raise RunError(f"{path.name} {state}, but had {length} bytes when the checkpoint was written")
    start = LogStart(length, digest_start(path, length) if length else new_digest())
    if start.digest.hexdigest() != digest:
        raise RunError(f"{path.name} was changed after the checkpoint was written")
    return start


class Log:
    """One log opened for appending; a checkpoint stores its length and checksum.

    Of an existing file `start` is kept, see `intact_start`, and the rest is cut off.
    """

    def __init__(self, path: Path, start: LogStart | None = None) -> None:
        refuse_link(path)
        start = start or LogStart(0, new_digest())
        self._digest = start.digest.copy()
        flags = os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)  # a link in a run folder could lead anywhere
        self._handle = open(path, "r+b", opener=lambda path, mode: os.open(path, mode | flags, 0o666))  # noqa: SIM115
        self._handle.truncate(start.length)
        self._handle.seek(start.length)
        self._synced = start.length

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one line."""
        line = (json.dumps(plain(row), allow_nan=False) + "\n").encode()
        self._handle.write(line)
        self._handle.flush()
        self._digest.update(line)

    def length(self) -> int:
        """Return the number of bytes written so far."""
        return self._handle.tell()

    def digest(self) -> str:
        """Return the checksum of these bytes."""
        return self._digest.hexdigest()

    def sync(self) -> None:
        """Wait until all lines are on the disk."""
        if self.length() != self._synced:
            os.fsync(self._handle.fileno())
            self._synced = self.length()

    def close(self) -> None:
        """Close the file."""
        self._handle.close()


def read_log(path: Path) -> list[dict[str, Any]]:
    """Read all complete lines of a log, also of one that is still being written; empty without a file."""
    if not path.exists():
        return []
    try:
        check_json(content := read_bytes(path, JSON))
        lines = [parse_json(line) for line in BytesIO(content) if line.rstrip().endswith(b"}")]
    except UserError:
        raise
    except ValueError as error:  # also text that is not UTF-8
        raise RunError(f"{path} is damaged ({' '.join(str(error).split())[:200]})") from None
    for line in lines:
        if not isinstance(line, dict):
            raise RunError(f"{path} is damaged: expected one table of names and values per line")
        _check(path, line)
    return lines


def _check(path: Path, line: dict[str, Any]) -> None:
    """Raise for a line without the entries that readers of this log rely on."""
    is_step = type(line.get("step")) is int and line["step"] >> 63 == 0
    expected: dict[str, tuple[str, bool]] = {"step": ("an integer from 0 to 2**63 - 1", is_step)}
    if path.stem == "events":
        expected["event"] = ("text", isinstance(line.get("event"), str))
    elif path.stem == "evals":
        accuracy = line.get("accuracy")
        usable = isinstance(accuracy, dict) and all(map(_is_number, accuracy.values()))
        expected["accuracy"] = ("a table of numbers", usable)
    else:
        numbers = {name: value for name, value in line.items() if name != "split" and value is not None}
        expected = {name: ("a number", _is_number(value)) for name, value in numbers.items()} | expected
    for name, (kind, is_so) in expected.items():
        if not is_so:
            raise RunError(f"{path} is damaged: {short(name)} is {short(line.get(name))}; expected {kind}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e308


def read_last_line(path: Path) -> dict[str, Any] | None:
    """Read the last complete line of a log, without reading the rest of it; None if there is none."""
    if not path.exists():
        return None
    with open_regular(path) as file:
        file.seek(max(0, path.stat().st_size - _TAIL))
        lines = file.read().splitlines(keepends=True)
    complete = [line for line in lines if line.endswith(b"}\n")]
    try:
        return dict(parse_json(complete[-1])) if complete else None
    except ValueError:  # a line longer than what was read
        return None
