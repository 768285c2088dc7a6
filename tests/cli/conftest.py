"""A finished run, flags of a short one, and grids without processes of their own."""

import shutil
from pathlib import Path

import pytest

from sora.cli import main
from tests.experiments.in_process import compute_here

TINY = "--dataset digits --epochs 2 --batch-size 32 --width 4 --set model.stages=1 --limit-train 64 "
TINY += "--limit-test 40 --holdout 20 --threads 1 --log-every 1"


@pytest.fixture
def grid_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grids compute their runs in this process, without the seconds that a new one takes to start."""
    compute_here(monkeypatch)


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
