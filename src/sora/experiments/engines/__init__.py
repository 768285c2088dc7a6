"""Where the runs of a grid are computed: processes of this machine, a Ray cluster, or Slurm.

An engine starts `sora train --resume auto` somewhere and reports when it has ended. The grid decides
everything else: which runs there are, which are finished, and what is printed.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from sora._files import wait_until_free
from sora._process import start_child
from sora.errors import UserError, not_allowed
from sora.settings import GRID_CONFIG

ENGINES = {  # the module of each engine: those of the extras are imported when they are used
    "local": "sora.experiments.engines",
    "ray": "sora.experiments.engines.on_ray",
    "slurm": "sora.experiments.engines.on_slurm",
}
PATIENCE = 120.0  # seconds for the process of a worker that was ended to write its checkpoint


@dataclass(frozen=True)
class Work:
    """One run to compute."""

    name: str
    arguments: Sequence[str]  # for `sora train`, besides those that name the files below
    settings: Path  # the file that holds its settings
    folder: Path  # its run folder

    @property
    def command(self) -> list[str]:
        """The arguments that train it; among them `--out`, as a file may not name places to write to."""
        files = ["--config", str(self.settings), "--out", str(self.folder)]
        return ["train", *files, "--resume", "auto", "--quiet", *self.arguments]

    def absolute(self) -> Work:
        """Return it with absolute paths, for another process."""
        return replace(self, settings=self.settings.resolve(), folder=self.folder.resolve())


class Ended(NamedTuple):
    """How a run ended: the exit code of its process, and the last line it printed to standard error."""

    code: int
    error: str


class Handle(Protocol):
    """A run that has been started."""

    def ended(self) -> Ended | None:
        """Return how it ended, None while it runs."""

    def stop(self) -> None:
        """Let it write its checkpoint and end, and wait for that as far as it can be observed."""


class Engine:
    """Starts runs; a subclass for each place where they are computed."""

    threads: int | None = None
    """CPU threads of a run where its settings do not say; None: the cores divided by the runs at once."""
    jobs: int | None = None  # runs at once; None: as many as the grid decides
    time_limit: float | None = None  # seconds that a run may take before it is ended and continued
    outlives: str = ""  # where runs go on when the grid ends; empty if they end with it

    def check(self) -> None:
        """Raise a `UserError` if runs cannot be started; called before anything is written."""

    def start(self, work: Work) -> Handle:
        """Begin to compute a run, or queue it."""
        raise NotImplementedError

    def describe(self, work: Work) -> str:
        """Return the batch file of a run, for `--dry-run`; empty if the engine writes none."""
        return ""

    def close(self) -> None:
        """Release what the engine holds, such as a connection to a cluster."""


def create(name: str, **options: Any) -> Engine:
    """Create one of `ENGINES`; `cpus` and `gpus` are what a run may use, the rest is an engine's own."""
    if name not in ENGINES:
        raise not_allowed("--engine", name, ENGINES)
    try:
        module = importlib.import_module(ENGINES[name])
    except ImportError as error:
        raise UserError(
            f"--engine {name} needs a package that is not installed ({error.name}); "
            f"pip install 'sora-at[{name}]'"
        ) from None
    engine: Engine = module.build(**options)
    return engine


class Local(Engine):
    """One process of this machine per run; they end with the process that started them."""

    def __init__(self, **_: object) -> None:
        """Ignore the options, which other engines have."""

    def start(self, work: Work) -> Process:
        """Start a process."""
        return Process(work)


build = Local


class Process:
    """A `sora train` that ends with this process."""

    def __init__(self, work: Work, cwd: str | None = None) -> None:
        # A file, because a run that writes more than a pipe holds would wait for a reader.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        streams: dict[str, Any] = {"stderr": self._errors, "stdout": subprocess.DEVNULL}
        command = [sys.executable, "-m", "sora", *work.command]
        self._process = start_child(command, {GRID_CONFIG: str(work.settings)}, cwd=cwd, **streams)
        self._end: Ended | None = None

    def ended(self) -> Ended | None:
        """Return how it ended, None while it runs."""
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


def train_on_cluster(work: Work, cwd: str | None = None) -> Ended:
    """Train a run on a worker, once the process of an earlier worker has written its checkpoint."""
    wait_until_free(work.folder, PATIENCE)
    return Process(work, cwd).wait()
