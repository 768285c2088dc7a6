"""The small grid that each kind of cluster computes, and its bytes after a local run."""

import subprocess
import sys
from pathlib import Path

import pytest

RUN = (
    "--dataset digits --limit-train 400 --limit-test 40 --width 4 --epochs 20 --eval-every 0 --batch-size 32"
    " --attacks clean --set model.stages=1 --checkpoint-every 20 --threads 1"
)
PATIENCE = 1800  # seconds for a grid to end, also on a busy machine


def compare(out: Path, *flags: str, methods: str = "fgsm") -> subprocess.Popen[str]:
    """Start `sora compare`, whose errors can be read."""
    command = [sys.executable, "-m", "sora", "compare", *RUN.split(), "--methods", methods, "--out", str(out)]
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    return subprocess.Popen([*command, *flags], text=True, **streams)


def done(process: subprocess.Popen[str], code: int = 0) -> str:
    """Wait for its end with this exit code; what it printed to standard error."""
    errors = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == code, errors
    return errors


def weights(out: Path) -> dict[str, bytes]:
    return {file.parent.name: file.read_bytes() for file in out.glob("*/model.safetensors")}


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The weights of each run of a grid on this machine alone."""
    folder = tmp_path_factory.mktemp("local") / "g"
    done(compare(folder, methods="fgsm,sora,n-fgsm"))
    return weights(folder)
