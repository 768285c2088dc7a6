"""Standard streams that may be closed or full: a failing print must not end a computation."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any, TextIO, cast


class Tolerant:
    """A text stream that drops what it cannot write, e.g. because the reader of a pipe has ended."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, or drop the text; characters that cannot be encoded are written as escapes."""
        with contextlib.suppress(OSError, ValueError):  # ValueError: the stream is closed
            if self._stream is not None:
                try:
                    self._stream.write(text)
                except UnicodeEncodeError:
                    self._stream.write(text.encode("ascii", "backslashreplace").decode())
        return len(text)

    def flush(self) -> None:
        """Flush, or drop what is left."""
        with contextlib.suppress(OSError, ValueError):
            if self._stream is not None:
                self._stream.flush()

    def isatty(self) -> bool:
        """Whether it is a terminal; not if it is closed."""
        try:
            return self._stream is not None and self._stream.isatty()
        except ValueError:
            return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def tolerant(stream: TextIO | None) -> TextIO:
    """The stream, or one in its place that never raises on writing."""
    return stream if isinstance(stream, Tolerant) else cast(TextIO, Tolerant(stream))


def occupy_standard_descriptors() -> None:
    """Open /dev/null in place of closed standard streams.

    Otherwise the next file that is opened gets their number, and whatever a library prints goes into it.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one


def escape_unprintable() -> None:
    """Print characters that standard output cannot encode, e.g. in names of files, as escapes."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def one_line_warnings() -> Iterator[None]:
    """Print warnings of any library in the form of this command's own messages."""
    usual, root, handler = warnings.formatwarning, logging.getLogger(), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("sora: warning: %(message)s"))
    warnings.formatwarning = lambda message, *_, **__: " ".join(str(message).split())
    logging.captureWarnings(True)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        logging.captureWarnings(False)
        warnings.formatwarning = usual


def discard_stdout() -> None:
    """Drop all further output, so that the interpreter does not fail once more when it flushes at its end."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
