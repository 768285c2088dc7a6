"""The small grid that each kind of cluster computes, and its bytes after a local run."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RUN = (
    "--dataset digits --limit-train 400 --limit-test 40 --width 4 --epochs 20 --eval-every 0 --batch-size 32"
    " --attacks clean --set model.stages=1 --checkpoint-every 20 --threads 1"
)
PATIENCE = 1800  # seconds for anything to happen, also on a busy machine


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


def wait_until(happened: Callable[[], Any], process: subprocess.Popen[str] | None = None) -> Any:
    """Wait for a true value, while the process runs if one is given; return the value."""
    deadline = time.monotonic() + PATIENCE
    while not (found := happened()):
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


def underway(run: Path, process: subprocess.Popen[str] | None = None) -> None:
    """Wait until a run has written its first lines."""
    log = run / "metrics.jsonl"
    wait_until(lambda: log.exists() and log.read_text().count("\n") > 3, process)


def weights(out: Path) -> dict[str, bytes]:
    return {file.parent.name: file.read_bytes() for file in out.glob("*/model.safetensors")}


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The weights of each run of a grid on this machine alone."""
    folder = tmp_path_factory.mktemp("local") / "g"
    done(compare(folder, methods="fgsm,sora,n-fgsm"))
    return weights(folder)
