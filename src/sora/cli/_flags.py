"""Flags that several verbs have: the settings of a run, and where the runs of a grid are computed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from sora.cli._parse import flag
from sora.errors import UserError, not_allowed

if TYPE_CHECKING:
    from sora.experiments.engines import Engine
    from sora.settings import Request, Resolved


@dataclass(frozen=True)
class SettingsFlags:
    """The flags that every verb with settings has."""

    config: str | None = flag(None, "YAML file with settings, grouped or flat; flags override it")
    recipe: str | None = flag(None, "recipe to start from; default: the one for the data set and network")
    resume: Literal["yes", "auto"] | None = flag(
        None,
        "continue an unfinished run; `--resume auto` starts a new one if there is none",
        metavar="[auto]",
        alone="yes",
    )
    dry_run: bool = flag(False, "print every setting with its origin and stop")
    quiet: bool = flag(False, "print nothing while working")
    json: bool = flag(False, "print the result as JSON")

    def request(self, given: Mapping[str, Any]) -> Request:
        """Return what the user asks for, with the settings that were given."""
        from sora.settings import GRID_CONFIG, Request, read_config_file

        by_grid = self.config is not None and os.environ.get(GRID_CONFIG) == self.config
        # The file of a grid knows where its values came from.
        config = read_config_file(self.config) if self.config and by_grid else self.config
        return Request(given, config=config, recipe=self.recipe)

    def resuming(self) -> Literal["yes", "auto"] | None:
        """Return --resume, which is `auto` if torchrun has started this process again."""
        restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
        return self.resume or ("auto" if restarted else None)


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
    slurm: str = flag("", "with slurm: options of sbatch, e.g. partition=gpu,time=60")

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
        share = {"cpus": self.cpus_per_run, "gpus": self.gpus_per_run}
        own = {"address": self.address, "send_back": self.send_back, "slurm": self.slurm}
        return closing(create(self.engine, **share, **own))

    def batch_files(self, runs: Sequence[Resolved]) -> list[str]:
        """Return what Slurm would be given for each run, for `--dry-run`; nothing with other engines."""
        from sora.experiments.grid import described

        self.check_engine()
        if self.engine != "slurm":
            return []  # creating the engine could start a cluster
        with self.chosen_engine() as engine:
            return described(runs, engine)
