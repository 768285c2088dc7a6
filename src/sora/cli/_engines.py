"""The flags that choose where the runs of a grid are computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sora.errors import UserError, not_allowed

if TYPE_CHECKING:
    from sora.experiments.engines import Engine
    from sora.settings import Resolved

ENGINE_FLAGS: dict[str, tuple[Any, Any, str]] = {
    "jobs": (
        int,
        0,
        "runs at the same time; 0: one per core, one with a GPU, or as many as a cluster accepts",
    ),
    "engine": (str, "local", "where runs are computed: local, ray or slurm (docs/cluster.md)"),
    "address": (str | None, None, "with ray: a running cluster, auto or HOST:PORT; default: start one here"),
    "cpus_per_run": (int, 1, "with ray or slurm: CPU cores per run"),
    "gpus_per_run": (float, 0.0, "with ray or slurm: GPUs per run"),
    "send_back": (bool, False, "with ray: the machines share no folder; results are sent back"),
    "slurm": (str, "", "with slurm: parameters of submitit's Slurm executor, e.g. partition=gpu,time=60"),
}


def check_engine_flags(flags: Any) -> None:
    """Raise for an engine that does not exist, and for flags of another one."""
    from sora.experiments.engines import ENGINES

    if flags.engine not in ENGINES:
        raise not_allowed("--engine", flags.engine, ENGINES)
    if flags.cpus_per_run < 1 or flags.gpus_per_run < 0:
        raise UserError("--cpus-per-run must be 1 or more, --gpus-per-run 0 or more")
    for flag, belongs in (("address", "ray"), ("send_back", "ray"), ("slurm", "slurm")):
        if getattr(flags, flag) and flags.engine != belongs:
            raise UserError(f"--{flag.replace('_', '-')} requires --engine {belongs}")
    if flags.engine == "local" and (flags.cpus_per_run != 1 or flags.gpus_per_run):
        raise UserError("--cpus-per-run and --gpus-per-run require --engine ray or slurm")
    if flags.engine == "slurm" and not flags.gpus_per_run.is_integer():
        raise UserError(f"--gpus-per-run is {flags.gpus_per_run:g}; Slurm gives a run whole GPUs only")


def batch_files(flags: Any, runs: Sequence[Resolved]) -> list[str]:
    """What Slurm would be given for each run, for `--dry-run`; nothing with other engines."""
    from sora.experiments.grid import described

    check_engine_flags(flags)
    if flags.engine != "slurm":
        return []  # creating the engine could start a cluster
    with chosen_engine(flags) as engine:
        return described(runs, engine)


@contextmanager
def chosen_engine(flags: Any) -> Iterator[Engine]:
    """The engine that the flags name; it is closed at the end of the block."""
    from sora.experiments.engines import create

    check_engine_flags(flags)
    engine = create(
        flags.engine,
        address=flags.address,
        cpus=flags.cpus_per_run,
        gpus=flags.gpus_per_run,
        send_back=flags.send_back,
        slurm=flags.slurm,
    )
    try:
        yield engine
    finally:
        engine.close()
