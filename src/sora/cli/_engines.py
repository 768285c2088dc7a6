"""The flags that choose where the runs of a grid are computed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sora.cli._parse import flag
from sora.errors import UserError, not_allowed

if TYPE_CHECKING:
    from sora.experiments.engines import Engine
    from sora.settings import Resolved


@dataclass(frozen=True)
class EngineFlags:
    """The flags of every verb that computes a grid of runs."""

    jobs: int = flag(
        0, "runs at the same time; 0: one per core, one with a GPU, or as many as a cluster accepts"
    )
    engine: str = flag("local", "where runs are computed: local, ray or slurm (docs/cluster.md)")
    address: str | None = flag(
        None, "with ray: a running cluster, auto or HOST:PORT; default: start one here"
    )
    cpus_per_run: int = flag(1, "with ray or slurm: CPU cores per run")
    gpus_per_run: float = flag(0.0, "with ray or slurm: GPUs per run")
    send_back: bool = flag(False, "with ray: the machines share no folder; results are sent back")
    slurm: str = flag("", "with slurm: parameters of submitit's Slurm executor, e.g. partition=gpu,time=60")

    def check_engine(self) -> None:
        """Raise for an engine that does not exist, and for flags of another one."""
        from sora.experiments.engines import ENGINES

        if self.engine not in ENGINES:
            raise not_allowed("--engine", self.engine, ENGINES)
        if self.cpus_per_run < 1 or self.gpus_per_run < 0:
            raise UserError("--cpus-per-run must be 1 or more, --gpus-per-run 0 or more")
        for name, belongs in (("address", "ray"), ("send_back", "ray"), ("slurm", "slurm")):
            if getattr(self, name) and self.engine != belongs:
                raise UserError(f"--{name.replace('_', '-')} requires --engine {belongs}")
        if self.engine == "local" and (self.cpus_per_run != 1 or self.gpus_per_run):
            raise UserError("--cpus-per-run and --gpus-per-run require --engine ray or slurm")
        if self.engine == "slurm" and not self.gpus_per_run.is_integer():
            raise UserError(f"--gpus-per-run is {self.gpus_per_run:g}; Slurm gives a run whole GPUs only")

    def chosen_engine(self) -> closing[Engine]:
        """Return the engine that the flags name, for a `with` block that closes it."""
        from sora.experiments.engines import create

        self.check_engine()
        engine = create(
            self.engine,
            address=self.address,
            cpus=self.cpus_per_run,
            gpus=self.gpus_per_run,
            send_back=self.send_back,
            slurm=self.slurm,
        )
        return closing(engine)

    def batch_files(self, runs: Sequence[Resolved]) -> list[str]:
        """Return what Slurm would be given for each run, for `--dry-run`; nothing with other engines."""
        from sora.experiments.grid import described

        self.check_engine()
        if self.engine != "slurm":
            return []  # creating the engine could start a cluster
        with self.chosen_engine() as engine:
            return described(runs, engine)
