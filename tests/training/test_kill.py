"""`kill -9` at random moments of real runs: minutes, so behind the slow marker."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sora import methods

FILES = ("model.safetensors", "metrics.jsonl", "evals.jsonl")


def command(method: str, norm: str, out: Path, *more: str) -> list[str]:
    eps = "0.15" if norm == "linf" else "1.5"
    flags = f"train --dataset digits --method {method} --norm {norm} --eps {eps} --threads 1 --quiet".split()
    return [sys.executable, "-m", "sora", *flags, "--out", str(out), *more]


def check(method: str, norm: str, epochs: int, moments: list[float], number: int, folder: Path) -> None:
    """Send a signal at each moment, a share of the run's time, and compare with a run that is left alone."""
    more = ("--epochs", str(epochs))
    began = time.monotonic()
    subprocess.run(command(method, norm, folder / "whole", *more), check=True)
    took = time.monotonic() - began
    run = [*command(method, norm, folder / "broken", *more), "--resume", "auto"]
    for moment in moments:
        process = subprocess.Popen(run, stderr=subprocess.DEVNULL)
        try:
            process.wait(moment * took)
        except subprocess.TimeoutExpired:
            process.send_signal(number)
        process.wait()
    subprocess.run(run, check=True)
    for name in FILES:
        assert (folder / "broken" / name).read_bytes() == (folder / "whole" / name).read_bytes(), name


def moments(seed: str, count: int) -> list[float]:
    chosen = random.Random(seed)
    return [chosen.uniform(0.2, 0.95) for _ in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize(("method", "epochs"), [("sora", 8), ("fgsm", 8), ("pgd-10", 4)])
def test_kill_9_at_five_random_moments(method: str, epochs: int, norm: str, tmp_path: Path) -> None:
    # The first is before the first checkpoint; the others fall anywhere.
    check(method, norm, epochs, [0.1, *moments(f"{method} {norm}", 4)], signal.SIGKILL, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_polite_signals_at_random_moments(number: int, tmp_path: Path) -> None:
    check("sora", "linf", 6, moments(str(number), 3), number, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [name for name in methods.names() if name not in ("sora", "fgsm", "pgd-10")]
)
def test_every_other_method_is_killed_once_and_resumes(method: str, tmp_path: Path) -> None:
    check(method, "linf", 3, moments(method, 1), signal.SIGKILL, tmp_path)
