"""A process that ends when the one that started it does, also after `kill -9`.

The parent keeps the writing end of a pipe that is the child's standard input. The operating system closes it
when the parent ends, however that happens, and the child reads the end of the file. Unlike a check of
the parent's process id, this works on every system, and a reused id cannot mislead it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

_VARIABLE = "SORA_ENDS_WITH_STDIN"


def start_child(
    command: Sequence[str], environment: Mapping[str, str], **options: Any
) -> subprocess.Popen[str]:
    """Start a `sora` process that ends with this one, after writing its checkpoint.

    Args:
        command: The command line.
        environment: Variables to add to this process' own.
        options: For `subprocess.Popen`.
    """
    environment = {**os.environ, **environment, _VARIABLE: "1"}
    return subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, text=True, **options)


def end_with_parent() -> None:
    """In a process that `start_child` started: receive SIGTERM when the parent has ended."""
    if os.environ.pop(_VARIABLE, None):
        threading.Thread(target=_wait_for_end, args=(sys.stdin.fileno(),), daemon=True).start()


def _wait_for_end(handle: int) -> None:
    while os.read(handle, 1024):
        pass
    signal.raise_signal(signal.SIGTERM)
