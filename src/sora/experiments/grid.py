"""Many runs at once, each a process of its own that can be killed and continued.

A run is `sora train --config FILE --resume auto`: finished ones are skipped, broken-off ones go on.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from sora._files import write_text
from sora.training.config import TrainConfig
from sora.training.run import is_finished

POLL = 0.3  # seconds between looks at the processes


@dataclass
class Job:
    """One run of a grid and the process that computes it."""

    config: TrainConfig
    process: subprocess.Popen[str] | None = None
    error: str = ""

    @property
    def folder(self) -> Path:
        """Its run folder."""
        return self.config.folder()

    @property
    def name(self) -> str:
        """Its name in tables and messages."""
        return self.folder.name


def default_jobs(count: int, device: str) -> int:
    """Processes at once: one a core for small CPU runs, one on a GPU."""
    return 1 if device.startswith("cuda") else max(1, min(count, os.cpu_count() or 1))


def run_grid(configs: Sequence[TrainConfig], jobs: int, *, quiet: bool = False) -> list[Job]:
    """Compute all runs, `jobs` at a time; a failure is noted in its job and does not stop the others."""
    threads = max(1, (os.cpu_count() or 1) // jobs)
    todo = [Job(replace(config, threads=config.threads or threads)) for config in configs]
    waiting = [job for job in todo if not is_finished(job.folder)]
    running: list[Job] = []
    with _progress(waiting, quiet) as refresh, _ending(running):
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(_start(waiting.pop(0)))
            time.sleep(POLL)
            for job in [job for job in running if job.process and job.process.poll() is not None]:
                running.remove(job)
                _finish(job)
            refresh()
    return todo


def _start(job: Job) -> Job:
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    file = job.folder.parent / f"{job.name}.yaml"
    write_text(file, job.config.to_yaml())
    command = [sys.executable, "-m", "sora", "train", "--config", str(file), "--resume", "auto", "--quiet"]
    job.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    return job


def _finish(job: Job) -> None:
    assert job.process is not None
    _, errors = job.process.communicate()
    if job.process.returncode:
        job.error = (errors.strip().splitlines() or [f"exit code {job.process.returncode}"])[-1]


@contextmanager
def _ending(running: list[Job]) -> Iterator[None]:
    """When the grid is broken off, let each process write its checkpoint and end."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        for job in running:
            if job.process and job.process.poll() is None:
                job.process.terminate()
        for job in running:
            if job.process:
                job.process.wait()


@contextmanager
def _progress(jobs: Sequence[Job], quiet: bool) -> Iterator[Callable[[], None]]:
    """A bar a run, read from its log."""
    console = Console(stderr=True, quiet=quiet)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    done: set[str] = set()
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as bars:
        tasks: dict[str, TaskID] = {job.name: bars.add_task(job.name, total=1.0) for job in jobs}

        def refresh() -> None:
            for job in jobs:
                bars.update(tasks[job.name], completed=_share_done(job))
                if job.name not in done and (job.error or is_finished(job.folder)):
                    done.add(job.name)
                    console.print(f"{job.name}: {job.error or 'done'}", markup=False, highlight=False)

        yield refresh


def _share_done(job: Job) -> float:
    """How much of a run is done, by the last line of its log."""
    if is_finished(job.folder):
        return 1.0
    log = job.folder / "metrics.jsonl"
    lines = log.read_bytes().splitlines() if log.exists() else []
    if not lines:
        return 0.0
    try:
        return float(json.loads(lines[-1])["epoch"] - 1) / job.config.epochs
    except ValueError:  # a line half written
        return 0.0
