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


def seconds_of(run: list[str]) -> float:
    began = time.monotonic()
    subprocess.run(run, check=True)
    return time.monotonic() - began


def kill_and_resume(run: list[str], moments: list[float], number: int) -> None:
    """Start the run anew or continue it, send the signal after each moment, and let it end at last."""
    for moment in moments:
        process = subprocess.Popen([*run, "--resume", "auto"], stderr=subprocess.DEVNULL)
        try:
            process.wait(moment)
        except subprocess.TimeoutExpired:
            process.send_signal(number)
        process.wait()
    subprocess.run([*run, "--resume", "auto"], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("method", ["sora", "fgsm", "pgd-10"])
def test_kill_9_at_five_random_moments(method: str, norm: str, tmp_path: Path) -> None:
    epochs = ["--epochs", "4" if method == "pgd-10" else "8"]
    took = seconds_of(command(method, norm, tmp_path / "whole", *epochs))
    # One second is before the first checkpoint; the others fall anywhere.
    moments = [1.0, *(random.Random(f"{method} {norm}").uniform(2, took) for _ in range(4))]
    kill_and_resume(command(method, norm, tmp_path / "broken", *epochs), moments, signal.SIGKILL)
    for name in FILES:
        assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_polite_signals_at_random_moments(number: int, tmp_path: Path) -> None:
    took = seconds_of(command("sora", "linf", tmp_path / "whole", "--epochs", "6"))
    moments = [random.Random(number).uniform(2, took) for _ in range(3)]
    kill_and_resume(command("sora", "linf", tmp_path / "broken", "--epochs", "6"), moments, number)
    for name in FILES:
        assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [name for name in methods.names() if name not in ("sora", "fgsm", "pgd-10")]
)
def test_every_other_method_is_killed_once_and_resumes(method: str, tmp_path: Path) -> None:
    run = command(method, "linf", tmp_path / "broken", "--epochs", "3")
    took = seconds_of(command(method, "linf", tmp_path / "whole", "--epochs", "3"))
    kill_and_resume(run, [random.Random(method).uniform(0.4, 0.9) * took], signal.SIGKILL)
    for name in FILES:
        assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
