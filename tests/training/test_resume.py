"""Killed anywhere and resumed: the same bytes as never killed."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from sora.errors import RunError
from sora.training import loop, train
from sora.training.config import TrainConfig
from sora.training.console import Interrupted

FILES = ("model.safetensors", "metrics.jsonl", "evals.jsonl", "events.jsonl")
TOTAL = 9  # three epochs of three batches


class Killed(BaseException):
    """Stands for a kill -9: nothing of ours catches it."""


def contents(config: TrainConfig) -> dict[str, bytes]:
    return {name: (config.folder() / name).read_bytes() for name in FILES}


def run_killed_at(config: TrainConfig, steps: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run to the end, dying once before each of the given steps."""
    original = loop._Run._train_on
    for step in steps:

        def die_at(self: Any, batch: Any, step: int = step) -> None:
            if self.state.step == step:
                raise Killed
            original(self, batch)

        monkeypatch.setattr(loop._Run, "_train_on", die_at)
        with pytest.raises(Killed):
            train(config, quiet=True)
    monkeypatch.setattr(loop._Run, "_train_on", original)
    train(config, quiet=True)


@pytest.mark.parametrize(
    ("method", "norm"),
    [
        ("sora", "linf"),
        ("sora", "l2"),
        ("fgsm", "linf"),
        ("fgsm", "l2"),
        ("pgd-10", "linf"),
        ("pgd-10", "l2"),
    ],
)
def test_killed_and_resumed_equals_never_killed(method, norm, settings, monkeypatch) -> None:
    eps = "0.15" if norm == "linf" else "1.5"
    whole = settings(method, "whole", norm=norm, eps=eps)
    train(whole, quiet=True)
    broken = settings(method, "broken", norm=norm, eps=eps)
    run_killed_at(broken, [0, 1, 3, 5, 8], monkeypatch)
    assert contents(broken) == contents(whole)


@pytest.mark.parametrize("changes", [{"ema": 0.9}, {"optimizer": "adamw", "lr": 1e-3}, {"eps_warmup": 1.5}])
def test_everything_that_changes_is_in_the_checkpoint(changes, settings, monkeypatch) -> None:
    whole, broken = settings(out="whole", **changes), settings(out="broken", **changes)
    train(whole, quiet=True)
    run_killed_at(broken, [3, 7], monkeypatch)
    assert contents(broken) == contents(whole)


def test_half_written_checkpoint_of_a_kill_is_ignored_and_removed(settings, monkeypatch) -> None:
    whole, broken = settings(out="whole"), settings(out="broken")
    train(whole, quiet=True)
    folder = broken.folder() / "checkpoints"
    folder.mkdir(parents=True)
    (folder / ".step-0-00000008.safetensors.tmp").write_bytes(b"half")
    run_killed_at(broken, [5], monkeypatch)
    assert contents(broken) == contents(whole)
    assert not list(folder.glob(".*"))


@pytest.mark.parametrize("damage", ["truncated", "foreign", "garbage"])
def test_damaged_checkpoint_falls_back_to_the_older_one_and_says_so(
    damage, settings, monkeypatch, capfd
) -> None:
    whole, broken = settings(out="whole"), settings(out="broken")
    train(whole, quiet=True)
    original = loop._Run._train_on

    def die(self: Any, batch: Any) -> None:
        if self.state.step == 7:
            raise Killed
        original(self, batch)

    monkeypatch.setattr(loop._Run, "_train_on", die)
    with pytest.raises(Killed):
        train(broken, quiet=True)
    monkeypatch.setattr(loop._Run, "_train_on", original)
    newest = sorted((broken.folder() / "checkpoints").glob("step-*"))[-1]
    if damage == "truncated":
        newest.write_bytes(newest.read_bytes()[:-100])
    elif damage == "garbage":
        newest.write_bytes(b"\x00" * 64)
    else:  # a checkpoint of a run with other settings
        other = settings(out="other", seed=5)
        train(other, quiet=True)
        newest.write_bytes(sorted((other.folder() / "checkpoints").glob("step-*"))[-1].read_bytes())
    train(broken)
    said = capfd.readouterr().err
    assert newest.name in said
    assert "falling back" in said
    assert contents(broken) == contents(whole)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_writes_a_checkpoint_first(number, code, settings, monkeypatch) -> None:
    whole, broken = settings(out="whole"), settings(out="broken")
    train(whole, quiet=True)
    original = loop._Run._train_on

    def signalled(self: Any, batch: Any) -> None:
        original(self, batch)
        if self.state.step == 5:  # between two checkpoints
            os.kill(os.getpid(), number)

    monkeypatch.setattr(loop._Run, "_train_on", signalled)
    with pytest.raises(Interrupted) as stopped:
        train(broken, quiet=True)
    assert stopped.value.exit_code == code
    assert (broken.folder() / "checkpoints" / "step-0-00000005.safetensors").exists()
    monkeypatch.setattr(loop._Run, "_train_on", original)
    train(broken, quiet=True)
    assert contents(broken) == contents(whole)


def test_full_disk_leaves_the_last_checkpoint_intact(settings, monkeypatch) -> None:
    from sora import _files

    whole, broken = settings(out="whole"), settings(out="broken")
    train(whole, quiet=True)
    original, calls = _files.save_file, []

    def full(tensors: Any, path: Path, metadata: Any) -> None:
        calls.append(path)
        if len(calls) > 3:
            Path(path).write_bytes(b"as much as fitted")
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        original(tensors, path, metadata)

    monkeypatch.setattr(_files, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        train(broken, quiet=True)
    monkeypatch.setattr(_files, "save_file", original)
    left = sorted(path.name for path in (broken.folder() / "checkpoints").iterdir())
    assert left
    assert not [name for name in left if name.startswith(".")]
    train(broken, quiet=True)
    assert contents(broken) == contents(whole)


def test_nonfinite_loss_stops_with_step_values_and_checkpoint(settings, monkeypatch) -> None:
    config = settings()
    original = loop._Run._train_on

    def poisoned(self: Any, batch: Any) -> None:
        if self.state.step == 5:
            with torch.no_grad():
                next(self.state.model.parameters()).fill_(torch.nan)
        original(self, batch)

    monkeypatch.setattr(loop._Run, "_train_on", poisoned)
    with pytest.raises(RunError, match=r"not finite at step 6 \(loss nan.*step-0-00000004"):
        train(config, quiet=True)
    events = [json.loads(line) for line in (config.folder() / "events.jsonl").read_text().splitlines()]
    assert events[-1]["event"] == "nonfinite"
    assert events[-1]["step"] == 6


def test_skipping_a_nonfinite_loss_leaves_the_weights_alone(settings, monkeypatch) -> None:
    config = settings(on_nonfinite="skip", guard="off")
    original, before = loop._Run._train_on, {}

    def poisoned(self: Any, batch: Any) -> None:
        if self.state.step == 4:
            before.update({n: p.clone() for n, p in self.state.model.named_parameters()})
            step = self.state.method.step
            self.state.method.step = lambda *a, **k: step(*a, **k)._replace(loss=torch.tensor(torch.nan))
            original(self, batch)
            self.state.method.step = step
            for name, parameter in self.state.model.named_parameters():
                assert torch.equal(parameter, before[name])
        else:
            original(self, batch)

    monkeypatch.setattr(loop._Run, "_train_on", poisoned)
    summary = train(config, quiet=True)
    assert before
    assert summary["skipped_updates"] == 1


def test_kill_9_of_the_real_process(settings, tmp_path) -> None:
    whole = settings(out="whole", epochs=6)
    train(whole, quiet=True)
    broken = settings(out="broken", epochs=6)
    file = tmp_path / "settings.yaml"
    file.write_text(broken.to_yaml())
    command = [sys.executable, "-m", "sora", "train", "--config", str(file), "--resume", "auto", "--quiet"]
    process = subprocess.Popen(command)
    metrics = broken.folder() / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert subprocess.run(command, check=False).returncode == 0
    assert contents(broken) == contents(whole)
