"""Runs as jobs of a Slurm cluster, submitted with `sbatch` and followed with `squeue`.

Slurm itself remembers which job computes which run, as the comment of the job. So a command that was stopped,
also by `kill -9`, finds its jobs again when it is repeated.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from sora._files import FOLDER_LOCK
from sora.errors import RunError, UserError
from sora.experiments.engines import Ended, Engine, Work
from sora.runs import RunFolder
from sora.settings import GRID_CONFIG

LOGS = "slurm"  # folder beside the runs
ATTEMPTS = 5  # jobs of a run that ends without its own fault
POLL = 2.0  # seconds between two calls of squeue
# States of a job that has ended. A job in any other state computes, waits, or is queued again by Slurm.
OVER = (
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"),
    *("REVOKED", "TIMEOUT"),
)
GONE = "gone"  # Slurm forgets a job minutes after its end
STOPPED = (130, 143)  # exit codes of a run that was asked to end, and has written its checkpoint


def build(cpus: int = 1, gpus: float = 0, slurm: str = "", **_: object) -> OnSlurm:
    """Create the engine; `slurm` holds options of sbatch as `partition=gpu,time=60`."""
    options = {"cpus-per-task": str(cpus), **({"gres": f"gpu:{gpus:g}"} if gpus else {})}
    for item in filter(None, (part.strip() for part in slurm.split(","))):
        key, equals, value = item.partition("=")
        if not equals:
            raise UserError(f"--slurm takes NAME=VALUE,..., e.g. partition=gpu,time=60; got {item!r}")
        options[key.strip().replace("_", "-")] = value
    return OnSlurm(cpus, options)


class OnSlurm(Engine):
    """One job per run; the folder of the grid must be shared by the nodes."""

    jobs: int | None = 10_000  # everything is queued at once
    outlives = "in Slurm (`squeue --me` shows the jobs, `scancel` ends them)"

    def __init__(self, cpus: int, options: dict[str, str]) -> None:
        self.threads: int | None = cpus
        self.time_limit = seconds_of(options.get("time", ""))
        self._options = options
        self._jobs: dict[str, tuple[str, str]] = {}
        self._asked = 0.0

    def check(self) -> None:
        """Raise where there is no Slurm, and for options that it refuses."""
        if shutil.which("sbatch") is None:
            raise UserError("--engine slurm needs sbatch, which is not here; --dry-run shows the scripts")
        try:
            _slurm("sbatch", "--test-only", text=self._header() + "true\n")
        except RunError as error:
            raise UserError(f"--slurm: {error}") from None

    def start(self, work: Work) -> Submitted:
        """Submit a job, or find the one that computes the run already."""
        return Submitted(self, work.absolute())

    def describe(self, work: Work) -> str:
        """Return the batch file."""
        work, lock = work.absolute(), shlex.quote(str(work.absolute().folder / FOLDER_LOCK))
        own = {"job-name": work.name, "comment": str(work.folder), "output": str(_log(work))}
        own |= {"open-mode": "append", "requeue": ""}
        return self._header(own) + (
            f"[ ! -e {lock} ] || flock --timeout 120 {lock} true  # an earlier job is still saving\n"
            f"export {GRID_CONFIG}={shlex.quote(str(work.settings))}\n"
            f"exec {shlex.join([sys.executable, '-m', 'sora', *work.command])}\n"
        )

    def _header(self, own: dict[str, str] | None = None) -> str:
        options = (own or {}) | self._options
        lines = (f"--{key}={shlex.quote(value)}" if value else f"--{key}" for key, value in options.items())
        return "#!/bin/bash\n" + "".join(f"#SBATCH {line}\n" for line in lines)

    def submit(self, work: Work) -> str:
        """Return the number of a new job."""
        _log(work).parent.mkdir(parents=True, exist_ok=True)
        number = _slurm("sbatch", "--parsable", text=self.describe(work)).strip().partition(";")[0]
        self._jobs[str(work.folder)] = number, "PENDING"
        return number

    def job_of(self, work: Work) -> tuple[str, str]:
        """Return the number and the state of the newest job of a run; Slurm is asked every few seconds."""
        if time.monotonic() - self._asked > POLL:
            self._asked = time.monotonic()
            with contextlib.suppress(RunError):  # the controller restarts, or is busy
                text = _slurm("squeue", "--me", "--states=all", "--noheader", "--format=%i|%T|%k")
                jobs = [line.split("|", 2) for line in text.splitlines()]
                newest_last = sorted((job for job in jobs if job[0].isdecimal()), key=lambda job: int(job[0]))
                self._jobs = {comment: (number, state) for number, state, comment in newest_last}
        return self._jobs.get(str(work.folder), ("", GONE))


class Submitted:
    """A queued or running job, which is replaced if it ends without the fault of its run."""

    def __init__(self, engine: OnSlurm, work: Work) -> None:
        self._engine, self._work, self._attempts = engine, work, 1
        self._job, state = engine.job_of(work)
        if state in (*OVER, GONE):
            self._job = engine.submit(work)

    def ended(self) -> Ended | None:
        """Return how it ended, None while it runs or waits, also after Slurm has queued it again."""
        number, state = self._engine.job_of(self._work)
        if number == self._job and state not in (*OVER, GONE):
            return None
        if RunFolder(self._work.folder).is_finished():
            return Ended(0, "")
        code = _exit_code(self._job)
        if state == "FAILED" and code not in STOPPED:
            return Ended(code or 1, _last_line(self._work) or f"Slurm job {self._job} failed")
        if self._attempts == ATTEMPTS:
            return Ended(1, f"{ATTEMPTS} Slurm jobs ended before the run, the last ({self._job}) as {state}")
        before, self._attempts = self._job, self._attempts + 1
        self._job = self._engine.submit(self._work)
        print(f"sora: {self._work.name}: Slurm job {before} ended as {state}; it continues as job {self._job}"
              f" ({self._attempts} of {ATTEMPTS})", file=sys.stderr)  # fmt: skip
        return None

    def stop(self) -> None:
        """Leave the job to Slurm: the same command collects its result."""


def seconds_of(limit: str) -> float | None:
    """Return Slurm's time limit in seconds, of M, M:S, H:M:S, D-H, D-H:M or D-H:M:S; None for other text."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", limit)
    if not found:
        return None
    days, first, second, third = (int(part or 0) for part in found.groups())
    if found[1] or found[4]:  # they begin with hours
        return ((days * 24 + first) * 60 + second) * 60 + third
    return first * 60 + second


def _slurm(*command: str, text: str = "") -> str:
    """Run a command of Slurm; raise a `RunError` with the last line it printed if it fails."""
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RunError(f"{command[0]}: {error}") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"{command[0]}: exit code {done.returncode}"]
        raise RunError(lines[0] if command[0] == "sbatch" else lines[-1])
    return done.stdout


def _exit_code(number: str) -> int | None:
    """Return the exit code of a job, None if Slurm has forgotten it."""
    try:
        found = re.search(r"\bExitCode=(\d+):(\d+)", _slurm("scontrol", "show", "job", number))
    except RunError:
        return None
    return (int(found[1]) or (int(found[2]) and 128 + int(found[2]))) if found else None


def _log(work: Work) -> Path:
    return work.folder.parent / LOGS / f"{work.name}.log"


def _last_line(work: Work) -> str:
    """Return the last line that a run printed."""
    try:
        return (_log(work).read_text(errors="replace").strip().splitlines() or [""])[-1]
    except OSError:
        return ""
