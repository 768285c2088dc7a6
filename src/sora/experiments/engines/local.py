"""Runs as processes of this machine, which end with the process that started them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sora._parent import start_child
from sora.experiments.engines.base import Ended, Engine, Work
from sora.settings import GRID_CONFIG


def build(**_: object) -> Local:
    """The engine; it has no options."""
    return Local()


class Local(Engine):
    """One process per run."""

    threads: int | None = None
    jobs: int | None = None

    def check(self) -> None:
        """There is always a machine to run on."""

    def start(self, work: Work) -> Process:
        """Start a process."""
        return Process(work.arguments, work.settings, work.folder)

    def close(self) -> None:
        """Nothing to release."""


def train_arguments(arguments: Sequence[str], settings: Path, folder: Path) -> list[str]:
    """`train` for a run of a grid. A file alone may not name places to write to: `--out` does."""
    files = ["--config", str(settings), "--out", str(folder)]
    return ["train", *files, "--resume", "auto", "--quiet", *arguments]


class Process:
    """A `sora train` that ends with this process."""

    def __init__(
        self, arguments: Sequence[str], settings: Path, folder: Path, cwd: str | None = None
    ) -> None:
        command = [sys.executable, "-m", "sora", *train_arguments(arguments, settings, folder)]
        # A file, because a run that writes more than a pipe holds would wait for a reader.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        streams: dict[str, Any] = {"stderr": self._errors, "stdout": subprocess.DEVNULL}
        self._process = start_child(command, {GRID_CONFIG: str(settings)}, cwd=cwd, **streams)
        self._end: Ended | None = None

    def ended(self) -> Ended | None:
        """How it ended; None as long as it has not."""
        return None if self._process.poll() is None else self.wait()

    def wait(self) -> Ended:
        """Wait for its end."""
        code = self._process.wait()  # not communicate(): it would close the pipe that keeps it alive
        if self._end is None:
            self._errors.seek(0)
            errors = self._errors.read().decode(errors="replace")
            reason = (errors.strip().splitlines() or [f"exit code {code}"])[-1] if code else ""
            self._end = Ended(code, reason)
            self._errors.close()
            if self._process.stdin is not None:
                self._process.stdin.close()
        return self._end

    def stop(self) -> None:
        """Ask it to end, and wait until it has written its checkpoint."""
        if self._process.poll() is None:
            self._process.terminate()
        self.wait()
