"""Calling the command line in this process: the same code as the `sora` command, without its start-up."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from sora.cli import main
from sora.experiments import engines
from tests.experiments import in_process

TINY = "--dataset digits --epochs 2 --batch-size 32 --width 4 --set model.stages=1 --limit-train 64 "
TINY += "--limit-test 40 --holdout 20 --threads 1 --log-every 1"


@dataclass
class Result:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def sora(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """`sora("train", "--epochs", "3")`."""
    torch.set_num_threads(1)

    def call(*arguments: object) -> Result:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return call


@pytest.fixture
def grid_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grids compute their runs in this process, without the seconds that a new one takes to start."""
    monkeypatch.setitem(engines.ENGINES, "local", in_process.__name__)


@pytest.fixture
def tiny() -> list[str]:
    """Flags of a run that takes a second."""
    return TINY.split()


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, which tests copy."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    assert main(["train", *TINY.split(), "--quiet", "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A finished run of this test's own."""
    return Path(shutil.copytree(finished, tmp_path / "a"))
