"""Files: bounded reading of untrusted ones, atomic writing, and locks that end with their process."""

import contextlib
import errno
import json
import math
import os
import platform
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from sora.errors import RunError, UserError, short


@dataclass(frozen=True)
class Limit:
    """An upper bound on what a file may make the program read or allocate."""

    default: int
    unit: str
    variable: str = ""  # the environment variable that replaces the default, if there is one

    @property
    def value(self) -> int:
        """The bound that holds now."""
        text = os.environ.get(self.variable, str(self.default))
        if not text.isdecimal() or int(text) < 1:
            raise UserError(f"{self.variable} is {text!r}; expected an integer, 1 or more")
        return int(text)

    def refusal(self, what: str) -> UserError:
        """Return the error for something that exceeds the bound."""
        remedy = f"; set {self.variable} to change it" if self.variable else ""
        return UserError(f"{what} exceeds the limit of {self.value:,} {self.unit}{remedy}")


PIXELS = Limit(1 << 26, "pixels", "SORA_MAX_PIXELS")  # of an image file, before and after it is resized
STORED_PIXELS = Limit(1 << 22, "pixels", "SORA_MAX_STORED_PIXELS")  # of an image as it is trained on
UNPACKED = Limit(1 << 29, "bytes", "SORA_MAX_UNPACKED")  # of an archive, or of a file read as a whole
JSON = Limit(1 << 26, "bytes of JSON, brackets and quotes counted as nine", "SORA_MAX_JSON")
"""Size of a JSON file or log; a value of three bytes can take a hundred in memory."""
SETTINGS = Limit(1 << 16, "bytes")  # of a settings file; the YAML parser needs a second for ten times that
TEXT = Limit(1 << 20, "bytes")  # of class names and other short texts
PARAMETERS = Limit(1 << 29, "parameters")  # of a model of this package, checked before it is built
CLASSES = Limit(100_000, "classes")  # of a data set


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


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


_JSON = json.JSONDecoder(parse_constant=_refuse_constant)


def parse_json(text: str | bytes) -> Any:
    """Parse JSON from a file; NaN, infinity and too many levels are a ValueError like any other mistake."""
    check_json(text)
    try:
        return _JSON.decode(text if isinstance(text, str) else text.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def check_json(text: str | bytes) -> None:
    """Raise a ValueError for JSON that would take too much memory once it is parsed."""
    marks: tuple[Any, ...] = (b"[", b"{", b'"') if isinstance(text, bytes) else ("[", "{", '"')
    if len(text) + 8 * sum(map(text.count, marks)) > JSON.value:
        raise ValueError(str(JSON.refusal("it")))


# Every file is first written in a scratch folder beside its place. The folder's name says which process made
# it, so that a later one can tell what a kill left behind from what is being written right now. A folder, not
# a file, because safetensors puts temporary files of its own beside the one it writes.
_HOST = re.sub(r"\W", "_", platform.node()) or "unknown"
_SCRATCH = re.compile(r"\.sora-(?P<host>\w+)-(?P<pid>\d{1,9})-(?P<token>[0-9a-f]{16})\.tmp")
_active: set[str] = set()  # scratch folders this process is writing in
_cleaned: set[Path] = set()  # folders in which this process has removed what dead ones left


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a file of the same name in a new folder, then move it to its place."""
    if path.parent not in _cleaned:
        remove_leftovers(path.parent)
    with _scratch(path) as scratch:
        temporary = scratch / path.name
        write(temporary)
        # The folder was made with the user's umask; safetensors makes files that nobody else can read.
        temporary.chmod(scratch.stat().st_mode & 0o666)
        with temporary.open("r+b") as handle:  # Windows refuses to sync a file that is open for reading
            os.fsync(handle.fileno())
        temporary.replace(path)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a folder to fill, which becomes `path` at the end of the block; one that is in use is refused."""
    if path.is_symlink() or (path.exists() and not (path.is_dir() and not any(path.iterdir()))):
        raise UserError(f"{path} is in use; choose another --out, or delete it")
    create_folder(path.parent)
    remove_leftovers(path.parent)
    with _scratch(path) as scratch:
        yield scratch
        if path.exists():
            path.rmdir()
        scratch.rename(path)


@contextmanager
def _scratch(path: Path) -> Iterator[Path]:
    """Yield a new folder beside a path, and delete what is left of it after the block."""
    scratch = _scratch_beside(path)
    _active.add(scratch.name)
    try:
        scratch.mkdir()
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        _active.discard(scratch.name)


def _scratch_beside(path: Path) -> Path:
    return path.with_name(f".sora-{_HOST}-{os.getpid()}-{secrets.token_hex(8)}.tmp")


def delete_folder(path: Path) -> None:
    """Delete a folder, if it exists; after a kill it is complete or a leftover, never half deleted."""
    scratch = _scratch_beside(path)
    with contextlib.suppress(OSError):  # another process may delete it at the same time
        path.rename(scratch)
    shutil.rmtree(scratch, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Delete unfinished files in a folder whose processes, on this machine, no longer run."""
    _cleaned.add(folder)
    for entry in folder.glob(".sora-*.tmp"):
        owner = _SCRATCH.fullmatch(entry.name)
        if owner and owner["host"] == _HOST and not _is_running(int(owner["pid"]), entry.name):
            shutil.rmtree(entry, ignore_errors=True)


def _is_running(pid: int, scratch: str) -> bool:
    """Return whether the process that made a scratch folder may still be using it."""
    if pid == os.getpid():  # ids are reused: a restarted container often has the same one
        return scratch in _active
    if os.name == "nt":  # there os.kill would end the process
        return True
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


def create_folder(path: Path) -> None:
    """Create a folder that the user named, unless it exists; a `UserError` if that cannot be done."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the name
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UserError(f"folder {str(path)!r} cannot be created: {reason}") from None


def make_folder(path: Path) -> None:
    """Create a folder inside a run folder, unless it exists; a link to elsewhere is refused."""
    refuse_link(path)
    create_folder(path)


def refuse_link(path: Path) -> None:
    """Raise for a symbolic link or special file in a run folder: a run writes only inside its folder."""
    if path.is_symlink() or not (path.is_file() or path.is_dir() or not path.exists()):
        raise RunError(f"{path} is a link or a special file, which is not written to; remove it")


def write_text(path: Path, text: str) -> None:
    """Write a text file under a temporary name, then rename it; in Markdown no name becomes HTML."""
    text = text.replace("<", "&lt;") if path.suffix == ".md" else text
    replace_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file in the same way; NaN and infinity become null."""
    write_text(path, json.dumps(plain(value), indent=2, allow_nan=False) + "\n")


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it: NaN and infinity become None."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def link(source: Path, target: Path) -> None:
    """Make `target` another name of the file `source`, in one step; a copy where there are no hard links."""

    def write(temporary: Path) -> None:
        try:
            temporary.hardlink_to(source)
        except OSError:
            shutil.copyfile(source, temporary)

    replace_file(target, write)


# The operating system owns a lock, so a killed process leaves none behind; the file itself stays. Over NFS,
# Linux passes the lock to the server, where it also holds against other machines; a mount with `nolock` or
# `local_lock=flock` guards against processes of the same machine only, and a machine that loses power keeps
# its lock until the server notices. A file system without locks is used without one.
FOLDER_LOCK = ".lock"
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


@contextmanager
def locked(path: Path, seconds: float = -1, note: str = "") -> Iterator[None]:
    """Hold the exclusive lock on a file, which is created if it does not exist and stays afterwards.

    A link is refused, because it could lead anywhere. If another process still holds the lock after `seconds`
    (-1: wait forever), a TimeoutError is raised. The file contains `note` while it is locked.
    """
    from filelock import FileLock  # imports asyncio, which is slow

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

    If another process holds it, a `UserError` names that process.
    """
    file, is_new = folder / FOLDER_LOCK, not folder.exists()
    with contextlib.ExitStack() as stack:
        while True:
            create_folder(folder)
            try:
                stack.enter_context(locked(file, 0, f"process {os.getpid()} on {platform.node()}\n"))
                break
            except FileNotFoundError:  # another process has just removed the folder, which it did not use
                continue
            except TimeoutError:
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
    if (folder / FOLDER_LOCK).exists():
        with contextlib.suppress(TimeoutError, FileNotFoundError), locked(folder / FOLDER_LOCK, seconds):
            pass


def _remove_if_unused(folder: Path) -> None:
    """Remove a folder that holds nothing but its lock, because the run it was created for was refused."""
    with contextlib.suppress(OSError):
        if [entry.name for entry in folder.iterdir()] == [FOLDER_LOCK]:
            (folder / FOLDER_LOCK).unlink()
            folder.rmdir()


def _owner(file: Path) -> str:
    try:
        return file.read_text().strip() or "it has just started"
    except (OSError, UnicodeDecodeError):
        return "unknown"
