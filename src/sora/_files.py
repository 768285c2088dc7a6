"""Writing files so that nobody ever reads half of one, even if the process is killed while writing."""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import re
import secrets
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sora.errors import RunError, UserError

# Every file is first written in a scratch folder beside its place. The folder's name says which process made
# it, so that a later one can tell what a kill left behind from what is being written right now. A folder, not
# a file, because safetensors puts temporary files of its own beside the one it writes.
_HOST = re.sub(r"\W", "_", platform.node()) or "unknown"
_SCRATCH = re.compile(r"\.sora-(?P<host>\w+)-(?P<pid>\d+)-(?P<token>[0-9a-f]{16})\.tmp")
_active: set[str] = set()  # scratch folders this process is writing in
_cleaned: set[Path] = set()  # folders in which this process has removed what dead ones left


def replace_file(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a file of the same name in a new folder, then move it to its place."""
    if path.parent not in _cleaned:
        remove_leftovers(path.parent)
    scratch = _scratch_beside(path)
    temporary = scratch / path.name
    _active.add(scratch.name)
    try:
        scratch.mkdir()
        write(temporary)
        # The folder was made with the user's umask; safetensors makes files that nobody else can read.
        temporary.chmod(scratch.stat().st_mode & 0o666)
        with temporary.open("r+b") as handle:  # Windows refuses to sync a file that is open for reading
            os.fsync(handle.fileno())
        temporary.replace(path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        _active.discard(scratch.name)


def _scratch_beside(path: Path) -> Path:
    return path.with_name(f".sora-{_HOST}-{os.getpid()}-{secrets.token_hex(8)}.tmp")


def delete_folder(path: Path) -> None:
    """Delete a folder, if it is there; after a kill it is complete or a leftover, never half deleted."""
    scratch = _scratch_beside(path)
    with contextlib.suppress(OSError):  # another process may delete it at the same time
        path.rename(scratch)
    shutil.rmtree(scratch, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Delete what processes of this machine left half-written in a folder, if they no longer run."""
    _cleaned.add(folder)
    for entry in folder.glob(".sora-*.tmp"):
        owner = _SCRATCH.fullmatch(entry.name)
        if owner and owner["host"] == _HOST and not _is_running(int(owner["pid"]), entry.name):
            shutil.rmtree(entry, ignore_errors=True)


def _is_running(pid: int, scratch: str) -> bool:
    """Whether the process that made a scratch folder may still be using it."""
    if pid == os.getpid():  # ids are reused: a restarted container often has the same one
        return scratch in _active
    if os.name == "nt":  # there os.kill would end the process
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def make_folder(path: Path) -> None:
    """Create a folder of a run unless it is there; a link to elsewhere is refused."""
    refuse_link(path)
    create_folder(path)


def create_folder(path: Path) -> None:
    """Create a folder that the user named, unless it is there; a `UserError` if that cannot be done."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the name
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UserError(f"folder {str(path)!r} cannot be created: {reason}") from None


def refuse_link(path: Path) -> None:
    """Raise for a symbolic link or special file in a run folder: a run writes only inside its folder."""
    if path.is_symlink() or not (path.is_file() or path.is_dir() or not path.exists()):
        raise RunError(f"{path} is a link or a special file, which is not written to; remove it")


def write_text(path: Path, text: str) -> None:
    """Write a text file under a temporary name, then rename it."""

    def write(temporary: Path) -> None:
        temporary.write_text(text, encoding="utf-8")

    replace_file(path, write)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file in the same way; NaN and infinity become null."""
    write_text(path, json.dumps(plain(value), indent=2, allow_nan=False) + "\n")


def link(source: Path, target: Path) -> None:
    """Make `target` another name of the file `source`, in one step; a copy where there are no hard links."""

    def write(temporary: Path) -> None:
        try:
            temporary.hardlink_to(source)
        except OSError:
            shutil.copyfile(source, temporary)

    replace_file(target, write)


def plain(value: Any) -> Any:
    """A value as JSON can hold it: NaN and infinity become None."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value
