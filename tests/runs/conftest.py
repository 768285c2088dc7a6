"""Runs that are trained once, and copied by each test that changes them."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sora.runs import RunFolder
from sora.runs.resume import settings_of_run
from sora.settings import Request, Resolved, Settings
from sora.training import train
from tests.training.conftest import SMALL, one_thread, settings  # noqa: F401
from tests.training.helpers import Killed, kill_at

CONSTANT = {"dataset": "digits", "batch_size": 32, "width": 4, "limit_train": 64, "limit_test": 20}
CONSTANT |= {"holdout": 20, "attacks": "clean", "threads": 1, "set": {"model.stages": 1}}
CONSTANT |= {"schedule": "multistep", "milestones": "", "lr": 0.05}


def small(folder: Path) -> Settings:
    """A run of nine steps."""
    given = {**SMALL, "method": "sora", "set": {"model.stages": 1}, "device": "cpu", "out": str(folder)}
    return Request(given).resolve().settings


def constant(out: Path, epochs: int, **changes: Any) -> Resolved:
    """A new run with a constant learning rate, which can be extended; two steps per epoch."""
    return settings_of_run(Request(CONSTANT | {"epochs": epochs, "out": str(out)} | changes), None)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, one killed after the seventh of its nine steps, and ones with a constant rate."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("trained")
    train(small(folder / "whole"), quiet=True)
    with pytest.raises(Killed):
        train(small(folder / "killed"), hooks=[kill_at(7)], quiet=True)
    for epochs in (2, 3):
        train(constant(folder / f"constant-{epochs}", epochs), quiet=True)
    return folder


@pytest.fixture
def copied(trained: Path, tmp_path: Path) -> Callable[[str], RunFolder]:
    """`copied("whole")` is this test's own copy of a run."""

    def copy(name: str) -> RunFolder:
        return RunFolder(shutil.copytree(trained / name, tmp_path / name))

    return copy


@pytest.fixture
def whole(copied: Callable[[str], RunFolder]) -> Settings:
    """The settings of a finished run."""
    return small(copied("whole").path)


@pytest.fixture
def killed(copied: Callable[[str], RunFolder]) -> Settings:
    """The settings of a run killed after its seventh step, with checkpoints of steps 4 and 6."""
    return small(copied("killed").path)


def content(folder: Path) -> dict[str, bytes]:
    """All files of a run but its lock."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def flip(path: Path, position: int) -> None:
    """Flip one bit of a file; hard links to the same file stay intact."""
    damaged = bytearray(path.read_bytes())
    damaged[position] ^= 1 << 4
    path.unlink()
    path.write_bytes(damaged)
