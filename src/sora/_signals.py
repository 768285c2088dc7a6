"""Stopping soon on Ctrl-C or SIGTERM, wherever the signal arrives."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

AGAIN = 0.05  # seconds until a signal is sent again whose exception was dropped
PATIENCE = 1.5  # seconds until a process is ended that is still inside one computation
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


@contextmanager
def never_dropped() -> Iterator[None]:
    """Inside the block, a signal that arrives inside a destructor is sent again.

    Python prints and drops an exception that leaves a destructor, the one of Ctrl-C included, and the command
    would go on as if nothing had happened.
    """
    usual, timers = sys.unraisablehook, list[threading.Timer]()

    def send_again(dropped: sys.UnraisableHookArgs) -> None:
        error = dropped.exc_value
        if not isinstance(error, (KeyboardInterrupt, Stopped)):
            usual(dropped)
            return
        # By a thread and later, because an exception that leaves this function would be dropped as well.
        number = getattr(error, "number", signal.SIGINT)
        timers.append(threading.Timer(AGAIN, os.kill, (os.getpid(), number)))
        timers[-1].start()

    sys.unraisablehook = send_again
    try:
        yield
    finally:
        sys.unraisablehook = usual
        for timer in timers:  # a command that has ended is no longer stopped
            timer.cancel()


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
