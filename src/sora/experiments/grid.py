"""Many runs at once, each a process of its own that can be killed and continued.

A run is `sora train --config FILE --resume auto`: finished ones are skipped, interrupted ones continue.
"""

import dataclasses
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from sora._console import Console
from sora._devices import check_count, device_name
from sora._files import locked_folder, wait_until_free, write_text
from sora.errors import RunError, UserError
from sora.experiments.engines import Engine, Handle, Work, create
from sora.runs import RunFolder
from sora.settings import Resolved, differences, is_custom

POLL = 0.3  # seconds between checks of the processes
PATIENCE = 60.0  # seconds that the runs of a killed grid get to write their checkpoints


class Job:
    """One run of a grid: its folder, its name in messages, the handle of the process that computes it."""

    def __init__(self, resolved: Resolved) -> None:
        self.resolved, self.folder = resolved, RunFolder(resolved.settings.folder())
        self.name, self.error = self.folder.name, ""
        self.handle: Handle | None = None

    @property
    def work(self) -> Work:
        """What an engine needs to know of it."""
        settings, path = self.resolved.settings, self.folder.path
        # A file alone may not name code to import or places to write to.
        arguments = ["--data-dir", settings.data_dir] if settings.data_dir else []
        arguments += ["--model", settings.model] if is_custom(settings.model) else []
        return Work(self.name, arguments, path.with_name(f"{self.name}.yaml"), path)


def default_jobs(count: int, device: str) -> int:
    """Return how many processes run at once: one per core for small CPU runs, one on a GPU."""
    return 1 if device_name(device) != "cpu" else max(1, min(count, os.cpu_count() or 1))


def run_grid(
    runs: Sequence[Resolved], jobs: int = 0, *, quiet: bool = False, engine: Engine | None = None
) -> list[Job]:
    """Compute all runs; a failure is recorded in its job and does not stop the others.

    `jobs` run at a time; 0: one per core, one on a GPU, or all that a cluster takes. Without an `engine` they
    are processes of this machine.
    """
    check_count("--jobs", jobs, 0)
    engine = engine or create("local")
    jobs = min(len(runs), jobs or engine.jobs or default_jobs(len(runs), runs[0].settings.device))
    threads = engine.threads or max(1, (os.cpu_count() or 1) // jobs)
    grid = [Job(_with_threads(resolved, threads)) for resolved in runs]
    engine.check()
    if engine.time_limit is not None:
        _refuse_short_limit([job.resolved for job in grid if not job.folder.is_finished()], engine.time_limit)
    for job in grid:
        _refuse_other_settings(job)
    try:
        _compute(grid, jobs, engine, quiet)
    except KeyboardInterrupt:
        finished = sum(job.folder.is_finished() for job in grid)
        state, verb = "those that began have a checkpoint", "continue"
        if engine.outlives:
            state, verb = f"the others go on {engine.outlives}", "collect"
        raise GridInterrupted(
            f"interrupted; {finished} of {len(grid)} runs are finished, {state};"
            f" repeat the command to {verb} them (`sora compare` with --resume)"
        ) from None
    return grid


class GridInterrupted(RunError):
    """The user has stopped a grid."""

    exit_code = 130


def _compute(grid: Sequence[Job], jobs: int, engine: Engine, quiet: bool) -> None:
    unfinished = [job for job in grid if not job.folder.is_finished()]
    waiting, running = list(unfinished), list[Job]()
    with ExitStack() as stack:
        for parent in sorted({job.folder.path.parent for job in grid}):
            stack.enter_context(locked_folder(parent))  # two grids in one folder would start each run twice
        for job in [] if engine.outlives else unfinished:  # of a grid that was killed: they write checkpoints
            wait_until_free(job.folder.path, PATIENCE)
        refresh = stack.enter_context(_progress(unfinished, quiet))
        stack.enter_context(_ending(running))
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(job := waiting.pop(0))
                job.work.settings.parent.mkdir(parents=True, exist_ok=True)
                write_text(job.work.settings, job.resolved.stored())
                job.handle = engine.start(job.work)
            time.sleep(POLL)
            for job in [job for job in running if _has_ended(job)]:
                running.remove(job)
            refresh()


def described(runs: Sequence[Resolved], engine: Engine) -> list[str]:
    """Return the batch file that an engine would submit for each run."""
    return [engine.describe(Job(_with_threads(run, engine.threads or 1)).work) for run in runs]


def _refuse_short_limit(runs: Sequence[Resolved], limit: float) -> None:
    """Raise if an epoch of a run, timed on this machine, takes longer than its job may run."""
    from sora.experiments.cost import estimate  # it needs this module

    runs = [run for run in runs if device_name(run.settings.device) == "cpu"]  # a login node has no GPU
    hours = estimate(runs, jobs=len(runs)).train_hours if runs else {}
    for run in runs:
        minutes = hours[run.settings.folder().name] * 60 / run.settings.epochs
        if minutes * 60 > limit:
            raise UserError(
                f"an epoch of {run.settings.folder().name} takes about {minutes:.1f} minutes here, the time"
                f" limit of its job is {limit / 60:g}; allow at least an epoch"
            )


def _refuse_other_settings(job: Job) -> None:
    """Raise if the folder holds a run with other settings, which would be taken for one of this grid."""
    changed = differences(job.folder.read_config(), job.resolved.settings) if job.folder.exists() else []
    if changed:
        raise UserError(
            f"the run in {job.folder.path} has other settings: {'; '.join(changed)}; repeat the flags it was"
            " started with, or choose another --out"
        )


def _with_threads(resolved: Resolved, threads: int) -> Resolved:
    settings = resolved.settings
    settings = dataclasses.replace(settings, threads=settings.threads or threads)
    return dataclasses.replace(resolved, settings=settings)


def _has_ended(job: Job) -> bool:
    """Return whether the run has ended, and note its error."""
    ended = job.handle.ended() if job.handle else None
    if ended is not None and ended.code:
        job.error = ended.error
        if not job.folder.exists():  # refused before it began: there is nothing to continue
            job.work.settings.unlink(missing_ok=True)
    return ended is not None


@contextmanager
def _ending(running: list[Job]) -> Iterator[None]:
    """If the grid is interrupted, let each process write its checkpoint and end."""
    handler = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
        with ThreadPoolExecutor(max(1, len(running))) as pool:  # all write their checkpoints at the same time
            for job in running:
                if job.handle:
                    pool.submit(job.handle.stop)


@contextmanager
def _progress(jobs: Sequence[Job], quiet: bool) -> Iterator[Callable[[], None]]:
    """Show a bar per run, from its log; without a terminal, one line per epoch and one at the end."""
    console = Console(stderr=True, quiet=quiet)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    printed = {job.name: _finished_epochs(job) for job in jobs}  # those of an earlier grid, not printed again
    ended: set[str] = set()
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as bars:
        tasks: dict[str, TaskID] = {job.name: bars.add_task(job.name, total=1.0) for job in jobs}

        def say(text: str) -> None:
            console.print(text, markup=False, highlight=False, soft_wrap=True)

        def refresh() -> None:
            for job in jobs:
                if job.name in ended:
                    continue
                ended_now, epochs = bool(job.error) or job.folder.is_finished(), job.resolved.settings.epochs
                done = _finished_epochs(job)
                bars.update(tasks[job.name], completed=done / epochs)
                if done > printed[job.name] and not console.is_terminal:
                    # The last line of an epoch has what `sora train` prints.
                    losses = {line["epoch"]: line["loss"] for line in job.folder.read_log("metrics")}
                    for epoch in range(printed[job.name] + 1, done + 1):
                        if epoch in losses:  # a run that its guard ended has no line for the others
                            loss = "-" if losses[epoch] is None else f"{losses[epoch]:.3f}"
                            say(f"{job.name}: epoch {epoch}/{epochs}  loss {loss}")
                    printed[job.name] = done
                if ended_now:
                    ended.add(job.name)
                    say(f"{job.name}: {job.error or 'done'} ({len(ended)} of {len(jobs)})")

        yield refresh


def _finished_epochs(job: Job) -> int:
    """Count the complete epochs of a run."""
    if job.folder.is_finished():
        return job.resolved.settings.epochs
    line = job.folder.last_line("metrics")
    return line["epoch"] - 1 if line else 0
