"""Stopping soon on Ctrl-C or SIGTERM, wherever the signal arrives."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

AGAIN = 0.05  # seconds after which a signal is sent again if Python dropped its exception
PATIENCE = 1.5  # seconds a long computation may delay the handler before the process is ended
NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Stopped(Exception):
    """Work was ended by a signal.

    Args:
        number: The signal.
        kept: What is kept and how to continue.
    """

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

    def __enter__(self) -> Interrupts:
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

    def _send_again(self, dropped: sys.UnraisableHookArgs) -> None:
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
    """Inside the block, Ctrl-C and SIGTERM raise `Stopped`; only for work that may be ended anywhere.

    Python runs a signal handler between two of its own instructions, and a pass of a large network is one
    instruction that may take minutes. If the handler has not run in time, a thread prints the same message
    and ends the process.

    Args:
        kept: Describes, when a signal came, what is kept and how to continue.
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
    handlers = {number: signal.signal(number, stop) for number in NUMBERS}
    previous = signal.set_wakeup_fd(writer)
    thread = threading.Thread(target=_end_process, args=(reader, handled, kept), daemon=True)
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


def _end_process(reader: int, handled: threading.Event, kept: Callable[[], str]) -> None:
    while received := os.read(reader, 1):
        number = received[0]
        if number in NUMBERS and not handled.wait(PATIENCE):
            print(f"sora: {Stopped(number, kept())}", file=sys.stderr, flush=True)
            os._exit(128 + number)
