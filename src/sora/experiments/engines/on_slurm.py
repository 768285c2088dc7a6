"""Runs as jobs of a Slurm cluster, submitted with submitit (the extra `slurm`)."""

from __future__ import annotations

import shlex
import shutil
from typing import Any

import submitit
from submitit.slurm.slurm import SlurmExecutor

from sora.errors import UserError
from sora.experiments.engines import Ended, Engine, Work, train_on_cluster

LOGS = "slurm"  # folder beside the runs


def build(cpus: int = 1, gpus: float = 0, slurm: str = "", **_: object) -> OnSlurm:
    """Create the engine; `slurm` holds parameters of submitit's executor as `partition=gpu,time=60`."""
    options: dict[str, Any] = {}
    for item in filter(None, (part.strip() for part in slurm.split(","))):
        key, equals, value = item.partition("=")
        if not equals:
            raise UserError(f"--slurm takes NAME=VALUE,..., e.g. partition=gpu,time=60; got {item!r}")
        options[key.strip().replace("-", "_")] = int(value) if value.isdecimal() else value
    return OnSlurm(cpus, int(gpus), options)


class _Writer(SlurmExecutor):  # type: ignore[misc]
    """Writes batch files also where there is no Slurm, for `--dry-run`."""

    @classmethod
    def affinity(cls) -> int:
        return 1


class OnSlurm(Engine):
    """One job per run; the folder of the grid must be shared by the nodes."""

    jobs: int | None = 10_000  # everything is queued at once

    def __init__(self, cpus: int, gpus: int, options: dict[str, Any]) -> None:
        self.threads: int | None = cpus
        self._options = {"cpus_per_task": cpus, **({"gres": f"gpu:{gpus}"} if gpus else {}), **options}

    def check(self) -> None:
        """Raise where there is no Slurm."""
        if shutil.which("sbatch") is None:
            raise UserError("--engine slurm needs sbatch, which is not here; --dry-run shows the scripts")

    def start(self, work: Work) -> Submitted:
        """Submit a job."""
        return Submitted(self._executor(SlurmExecutor, work).submit(train_on_cluster, work.absolute()))

    def describe(self, work: Work) -> str:
        """Return the batch file."""
        command = shlex.join(["sora", *work.command])
        return str(self._executor(_Writer, work)._make_submission_file_text(command, "JOB"))

    def _executor(self, kind: type[SlurmExecutor], work: Work) -> SlurmExecutor:
        executor = kind(folder=work.folder.parent / LOGS)
        try:
            executor.update_parameters(job_name=work.name, **self._options)
        except (TypeError, NameError, ValueError) as error:
            raise UserError(f"--slurm: {' '.join(str(error).split())[:300]}") from None
        return executor


class Submitted:
    """A queued or running job."""

    def __init__(self, job: submitit.Job[Ended]) -> None:
        self._job = job

    def ended(self) -> Ended | None:
        """Return how it ended, None while it runs."""
        if not self._job.done():
            return None
        error = self._job.exception()
        if error is not None:
            return Ended(1, f"Slurm job {self._job.job_id}: {' '.join(str(error).split())[:300]}")
        return Ended(*self._job.result())

    def stop(self) -> None:
        """Cancel the job; Slurm sends SIGTERM, on which the run writes its checkpoint."""
        self._job.cancel(check=False)
