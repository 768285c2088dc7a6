"""What surrounds a process: signals, the process that started it, and its standard streams."""

import contextlib
import io
import logging
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, TextIO

AGAIN = 0.05  # seconds after which a signal is sent again if Python dropped its exception
PATIENCE = 1.5  # seconds a long computation may delay the handler before the process is ended
NUMBERS = (signal.SIGINT, signal.SIGTERM)
_CONTROLS = (*range(9), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
VISIBLE = {code: ascii(chr(code))[1:-1] for code in _CONTROLS}  # names in files must not control a terminal
_ENDS_WITH_STDIN = "SORA_ENDS_WITH_STDIN"  # environment variable of a process that `start_child` started


class Stopped(Exception):
    """Work was ended by a signal; `kept` says what is kept and how to continue."""

    def __init__(self, number: int, kept: str) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}; {kept}")
        self.number, self.exit_code = number, 128 + number


class Interrupts:
    """A block in which no Ctrl-C is lost or mistaken for another error.

    Python prints and drops an exception that leaves a destructor, the one of Ctrl-C included, and the command
    would go on as if nothing had happened: such a signal is sent again. Library code may also turn that
    exception into one of its own: `received` says that whatever was raised began with a Ctrl-C.
    """

    def __init__(self) -> None:
        self.received = False
        self._timers: list[threading.Timer] = []

    def __enter__(self) -> "Interrupts":
        self._show = sys.unraisablehook
        sys.unraisablehook = self._send_again
        # In other threads, and where Ctrl-C is ignored or handled already, the host program decides.
        in_main_thread = threading.current_thread() is threading.main_thread()
        self._ours = in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._ours:
            signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        sys.unraisablehook = self._show
        for timer in self._timers:  # a command that has ended is no longer stopped
            timer.cancel()
        if self._ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self.received = True
        raise KeyboardInterrupt

    def _send_again(self, dropped: "sys.UnraisableHookArgs") -> None:
        error = dropped.exc_value
        if not isinstance(error, (KeyboardInterrupt, Stopped)):
            self._show(dropped)
            return
        # By a thread and later, because an exception that leaves this function would be dropped as well.
        number = getattr(error, "number", signal.SIGINT)
        self._timers.append(threading.Timer(AGAIN, os.kill, (os.getpid(), number)))
        self._timers[-1].start()


@contextmanager
def stopping_soon(kept: Callable[[], str]) -> Iterator[None]:
    """Raise `Stopped` on Ctrl-C and SIGTERM inside the block; only for work that may be ended anywhere.

    Python runs a signal handler between two of its own instructions, and a pass of a large model is one
    instruction that may take minutes. If the handler has not run in time, a thread prints the same message
    and ends the process. `kept` describes, after a signal, what is kept and how to continue.
    """
    if threading.current_thread() is not threading.main_thread():  # the host program handles signals
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number, kept())

    reader, writer = os.pipe()
    if hasattr(os, "set_blocking"):  # not on Windows before Python 3.12
        os.set_blocking(writer, False)
    handled = threading.Event()
    heard = [number for number in NUMBERS if signal.getsignal(number) is not signal.SIG_IGN]
    handlers = {number: signal.signal(number, stop) for number in heard}
    previous = signal.set_wakeup_fd(writer)

    def end_process() -> None:
        while received := os.read(reader, 1):
            if received[0] in NUMBERS and not handled.wait(PATIENCE):
                print(f"sora: {Stopped(received[0], kept())}", file=sys.stderr, flush=True)
                os._exit(128 + received[0])

    thread = threading.Thread(target=end_process, daemon=True)
    thread.start()
    try:
        yield
    finally:
        handled.set()
        signal.set_wakeup_fd(previous)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.close(writer)  # ends the thread if it still waits for a signal
        thread.join()
        os.close(reader)


def start_child(
    command: Sequence[str], environment: Mapping[str, str], **options: Any
) -> subprocess.Popen[str]:
    """Start a `sora` process that ends with this one, also after `kill -9`, and writes its checkpoint first.

    This process keeps the writing end of a pipe that is the child's standard input. The operating system
    closes it when this process ends, however that happens, and the child reads the end of the file. Unlike a
    check of the parent's process id, this works on every system, and a reused id cannot mislead it.
    `environment` is added to this process' own; `options` are those of `subprocess.Popen`.
    """
    environment = {**os.environ, **environment, _ENDS_WITH_STDIN: "1"}
    return subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, text=True, **options)


def end_with_parent() -> None:
    """Arrange for SIGTERM when the parent has ended, in a process that `start_child` started."""
    if os.environ.pop(_ENDS_WITH_STDIN, None):
        threading.Thread(target=_wait_for_end, args=(sys.stdin.fileno(),), daemon=True).start()


def _wait_for_end(handle: int) -> None:
    while os.read(handle, 1024):
        pass
    signal.raise_signal(signal.SIGTERM)


class Tolerant:
    """A text stream that drops what it cannot write: a failing print must not end a computation."""

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
        """Return whether it is an open terminal."""
        try:
            return self._stream is not None and self._stream.isatty()
        except ValueError:
            return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Escaping:
    """A text stream that writes control characters, and those it cannot encode, as escapes."""

    def __init__(self, stream: Any) -> None:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
        self.rich_proxied_file = stream  # rich's name for the stream that its own codes go to

    def write(self, text: str) -> Any:
        """Write the text."""
        return self.rich_proxied_file.write(text.translate(VISIBLE))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


def occupy_standard_descriptors() -> None:
    """Open /dev/null in place of closed standard streams.

    Otherwise the next file that is opened gets their number, and whatever a library prints goes into it.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one


@contextmanager
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
