"""An engine that trains in this process: tests of grids need not start an interpreter per run."""

import contextlib
import io
import os
from collections.abc import Callable
from unittest.mock import patch

import pytest

from sora.cli import demo, main
from sora.experiments.engines import ENGINES, Ended, Engine, Work
from sora.settings import GRID_CONFIG, Request


class Done:
    """A run that has ended."""

    def __init__(self, how: Ended) -> None:
        self._how = how

    def ended(self) -> Ended:
        return self._how

    def stop(self) -> None:
        pass


class InProcess(Engine):
    """Trains when a run is started; `fails` may return an error instead."""

    threads: int | None = 1
    jobs: int | None = 7

    def __init__(self, fails: Callable[[Work], str] = lambda work: "") -> None:
        self.fails, self.started = fails, list[str]()

    def start(self, work: Work) -> Done:
        self.started.append(work.name)
        error, code = self.fails(work), 1
        if not error:
            config = {GRID_CONFIG: str(work.settings)}
            with patch.dict(os.environ, config), contextlib.redirect_stderr(io.StringIO()) as printed:
                code = main(work.command)
            error = (printed.getvalue().splitlines() or [""])[-1]
        return Done(Ended(code, error))

    def describe(self, work: Work) -> str:
        return work.name


def build(**_: object) -> InProcess:
    """As every engine's module has it."""
    return InProcess()


def compute_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let grids compute their runs in this process, and make those of the demo small."""
    small = {"width": 4, "batch_size": 32, "limit_train": 64, "limit_test": 40, "holdout": 20}
    monkeypatch.setitem(ENGINES, "local", __name__)
    monkeypatch.setattr(demo, "Request", lambda given: Request(given | small))
