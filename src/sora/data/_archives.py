"""Archives as mappings from the names of their members to functions that read them.

Nothing is unpacked to disk, so no member can be written outside the data folder. An archive whose members
point outside it is refused all the same, and so is one that unpacks to far more than its own size.
"""

import gzip
import io
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath

from sora._files import UNPACKED, open_regular, read_bytes
from sora.errors import UserError

_RATIO = 20
"""A file may unpack to this many times its own size, or to `UNPACKED` bytes; images hardly compress."""

Files = dict[str, Callable[[], bytes]]


def open_archive(path: Path) -> Files:
    """Open a tar, tar.gz or zip file or a plain folder."""
    if path.is_dir():
        files = (file for file in path.rglob("*") if file.is_file())
        return {file.relative_to(path).as_posix(): partial(read_bytes, file) for file in files}
    if not path.exists():
        raise UserError(f"{path} does not exist")
    open_regular(path).close()  # raises for a FIFO, which the next line would wait for
    return _open_zip(path) if zipfile.is_zipfile(path) else _read_tar(path)


class Flat:
    """An archive whose files are found by name alone, in any folder."""

    def __init__(self, path: Path) -> None:
        self._path, self.archive = path, open_archive(path)
        self._full = {PurePosixPath(name).name: name for name in self.archive}

    def __contains__(self, name: str) -> bool:
        return name in self._full

    def __getitem__(self, name: str) -> bytes:
        if name not in self._full:
            raise UserError(f"{self._path} contains no {name}")
        return self.archive[self._full[name]]()


def _open_zip(path: Path) -> Files:
    try:
        archive = zipfile.ZipFile(path)
    except Exception as error:  # many kinds, NotImplementedError among them
        raise UserError(f"{path} is not a readable zip file: {error}") from None
    members = [member for member in archive.infolist() if not member.is_dir()]
    if sum(member.file_size for member in members) > unpacked_limit(path):
        raise _bomb(path)
    for member in members:
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others have no bound
            raise UserError(f"{path} refused: its member {member.filename!r} is neither stored nor deflated")
        _check(path, member.filename, plain=not stat.S_ISLNK(member.external_attr >> 16))

    def read(member: zipfile.ZipInfo) -> bytes:
        try:
            return archive.read(member)
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, OSError) as error:
            raise UserError(f"{path}: {member.filename} is damaged: {error}") from None

    return {member.filename: partial(read, member) for member in members}


def _read_tar(path: Path) -> Files:
    files: Files = {}
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            source = _Capped(gzip.GzipFile(fileobj=raw) if zipped else raw, path)
            # As a stream: a member is checked before any of it is unpacked.
            with tarfile.open(fileobj=source, mode="r|") as tar:  # type: ignore[call-overload]
                for member in tar:
                    plain = member.isdir() or (member.isfile() and not member.issparse())
                    _check(path, member.name, plain)
                    content = tar.extractfile(member) if member.isfile() else None
                    if content is not None:
                        files[member.name] = io.BytesIO(content.read()).getvalue
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise UserError(f"{path} is damaged or not an archive: {error}") from None
    return files


class _Capped:
    """A stream that raises if it yields more bytes than its archive may unpack to."""

    def __init__(self, file: gzip.GzipFile | io.BufferedReader, path: Path) -> None:
        self._file, self._path, self._left = file, path, unpacked_limit(path)

    def read(self, size: int) -> bytes:
        data = self._file.read(min(size, self._left + 1))
        self._left -= len(data)
        if self._left < 0:
            raise _bomb(self._path)
        return data


def unpacked_limit(path: Path) -> int:
    """Return how many bytes a file may unpack to."""
    return max(UNPACKED.value, _RATIO * path.stat().st_size)


def _check(path: Path, name: str, plain: bool) -> None:
    parts = (*PurePosixPath(name).parts, *PureWindowsPath(name).parts)
    absolute = PurePosixPath(name).is_absolute() or PureWindowsPath(name).anchor
    if absolute or ".." in parts:
        raise UserError(f"{path} refused: its member {name!r} points outside the archive")
    if not plain:
        raise UserError(f"{path} refused: its member {name!r} is a link or a special file")


def _bomb(path: Path) -> UserError:
    limit = f"{unpacked_limit(path):,} bytes; set {UNPACKED.variable} to raise it"
    return UserError(f"{path} refused: it unpacks to more than {limit}")
