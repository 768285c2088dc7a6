"""What a grid needs of an engine."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from sora.errors import UserError, not_allowed

ENGINES = {"local": "local", "ray": "on_ray", "slurm": "on_slurm"}
"""The module of each engine: those of the extras are imported when they are used."""


@dataclass(frozen=True)
class Work:
    """One run to compute: the arguments of `sora train`, and the files they name."""

    name: str
    arguments: Sequence[str]
    """For `sora train`, without `--config` and `--out`."""
    settings: Path
    """The file that holds its settings."""
    folder: Path
    """Its run folder."""


class Ended(NamedTuple):
    """How a run ended: the exit code of its process, and the last line it printed to standard error."""

    code: int
    error: str


class Handle(Protocol):
    """A run that has been started."""

    def ended(self) -> Ended | None:
        """How it ended; None as long as it has not."""

    def stop(self) -> None:
        """Let it write its checkpoint and end; returns when it has, as far as that can be known."""


class Engine(Protocol):
    """Starts runs."""

    threads: int | None
    """CPU threads of a run where its settings do not say; None: the cores divided by the runs at once."""
    jobs: int | None
    """Runs at once; None: as many as the grid decides."""

    def check(self) -> None:
        """Raise a `UserError` if runs cannot be started; called before anything is written."""

    def start(self, work: Work) -> Handle:
        """Begin to compute a run, or queue it."""

    def describe(self, work: Work) -> str:
        """The batch file of a run, for `--dry-run`; empty if the engine writes none."""
        return ""

    def close(self) -> None:
        """Release what the engine holds, such as a connection to a cluster."""


def create(name: str, **options: Any) -> Engine:
    """An engine by name.

    Args:
        name: One of `ENGINES`.
        **options: `cpus`, `gpus`: what a run may use; `address`, `send_back` for Ray; `slurm` for Slurm.
    """
    if name not in ENGINES:
        raise not_allowed("--engine", name, ENGINES)
    try:
        module = importlib.import_module(f"sora.experiments.engines.{ENGINES[name]}")
    except ImportError as error:
        raise UserError(
            f"--engine {name} needs a package that is not installed ({error.name}); "
            f"pip install 'sora-at[{name}]'"
        ) from None
    engine: Engine = module.build(**options)
    return engine
