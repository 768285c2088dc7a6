"""Killed anywhere and resumed: the same bytes as never killed."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import torch as safetensors_torch

from sora import _files
from sora.errors import RunError
from sora.runs import RunFolder
from sora.settings import Resolved, Settings
from sora.training import Hook, Interrupted, train
from tests.training.disturbances import Killed, SignalAfter, kill_at, kill_at_link, poison_at

FILES = ("model.safetensors", "metrics.jsonl", "evals.jsonl", "events.jsonl")


def contents(settings: Settings) -> dict[str, bytes]:
    return {name: (settings.folder() / name).read_bytes() for name in FILES}


def run_killed_at(settings: Settings, steps: list[int]) -> None:
    """Run to the end, dying once before each of the given steps."""
    for step in steps:
        with pytest.raises(Killed):
            train(settings, hooks=[kill_at(step)], quiet=True)
    train(settings, quiet=True)


@pytest.mark.parametrize("method", ["sora", "fgsm", "pgd-10"])
@pytest.mark.parametrize(("norm", "eps"), [("linf", "0.15"), ("l2", "1.5")])
def test_killed_and_resumed_equals_never_killed(method, norm, eps, settings) -> None:
    whole, broken = (settings(method, name, norm=norm, eps=eps) for name in ("whole", "broken"))
    train(whole, quiet=True)
    run_killed_at(broken, [0, 1, 3, 5, 8])
    assert contents(broken) == contents(whole)


@pytest.mark.parametrize(
    "changes",
    [
        {"ema": 0.9},
        {"ema": 0.9, "ema_buffers": "estimate"},
        {"optimizer": "adamw", "lr": 1e-3, "lr_min": 1e-5},
        {"eps_warmup": 1.5},
        {"eps_warmup": 3, "method": "atas", "set": {"atas.reset_every": 1}},
    ],
)
def test_everything_that_changes_is_in_the_checkpoint(changes, settings) -> None:
    whole, broken = settings(out="whole", **changes), settings(out="broken", **changes)
    train(whole, quiet=True)
    run_killed_at(broken, [3, 7])
    assert contents(broken) == contents(whole)


def test_half_written_checkpoint_of_a_kill_is_ignored_and_removed(settings) -> None:
    whole, broken = settings(out="whole"), settings(out="broken")
    train(whole, quiet=True)
    folder = broken.folder() / "checkpoints"
    scratch = folder / f".sora-{_files._HOST}-{os.getpid()}-{'0' * 16}.tmp"  # of a process with our number
    scratch.mkdir(parents=True)
    (scratch / "step-0-00000008.safetensors").write_bytes(b"half")
    run_killed_at(broken, [5])
    assert contents(broken) == contents(whole)
    assert not list(folder.glob(".*"))


@pytest.mark.parametrize("damage", ["truncated", "foreign", "garbage"])
def test_damaged_checkpoint_falls_back_to_the_older_one_and_says_so(damage, settings, capfd) -> None:
    whole, broken = settings(out="whole"), settings(out="broken")
    train(whole, quiet=True)
    with pytest.raises(Killed):
        train(broken, hooks=[kill_at(7)], quiet=True)
    newest = RunFolder(broken.folder()).checkpoints.newest_first()[0]
    if damage == "truncated":
        newest.write_bytes(newest.read_bytes()[:-100])
    elif damage == "garbage":
        newest.write_bytes(b"\x00" * 64)
    else:  # a checkpoint of a run with other settings
        other = settings(out="other", seed=5)
        train(other, quiet=True)
        newest.write_bytes(RunFolder(other.folder()).checkpoints.newest_first()[0].read_bytes())
    train(broken)
    printed = capfd.readouterr().err
    assert newest.name in printed
    assert "falling back" in printed
    assert "resuming from step 4" in printed
    assert contents(broken) == contents(whole)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_writes_a_checkpoint_first(number, code, settings) -> None:
    whole, broken = settings(out="whole"), settings(out="broken")
    train(whole, quiet=True)
    with pytest.raises(Interrupted) as stopped:  # between two checkpoints
        train(broken, hooks=[SignalAfter(5, number)], quiet=True)
    assert stopped.value.exit_code == code
    train(broken, quiet=True)
    assert contents(broken) == contents(whole)


def test_a_kill_before_the_name_of_the_best_checkpoint_is_made_up_for(settings, monkeypatch) -> None:
    whole, broken = settings(out="whole"), settings(out="broken")
    train(whole, quiet=True)
    one, other = (RunFolder(config.folder()).checkpoints for config in (whole, broken))
    best = one.read(one.best)[1]["step"]
    kill_at_link(monkeypatch, best)
    with pytest.raises(Killed):
        train(broken, quiet=True)
    monkeypatch.undo()
    assert not other.best.exists() or other.read(other.best)[1]["step"] < best
    train(broken, quiet=True)
    assert contents(broken) == contents(whole)
    expected, found = one.read(one.best), other.read(other.best)
    assert found[1]["step"] == best
    assert all(torch.equal(tensor, found[0][name]) for name, tensor in expected[0].items())


def test_full_disk_leaves_the_last_checkpoint_intact(settings, monkeypatch) -> None:
    whole, broken = settings(out="whole"), settings(out="broken")
    train(whole, quiet=True)
    save, calls = safetensors_torch.save_file, []

    def full_disk(tensors: Any, path: Path, metadata: Any) -> None:
        calls.append(path)
        if len(calls) > 3:
            Path(path).write_bytes(b"as much as fitted")
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        save(tensors, path, metadata)

    monkeypatch.setattr("sora.runs.weights.save_file", full_disk)
    with pytest.raises(OSError, match="No space left"):
        train(broken, quiet=True)
    monkeypatch.undo()
    torch.set_num_threads(1)
    left = sorted(path.name for path in (broken.folder() / "checkpoints").iterdir())
    assert left
    assert not [name for name in left if name.startswith(".")]
    train(broken, quiet=True)
    assert contents(broken) == contents(whole)


def test_nonfinite_loss_stops_with_step_values_and_checkpoint(settings) -> None:
    config = settings()
    with pytest.raises(RunError, match=r"not finite at step 6 \(loss nan.*step-0-00000004"):
        train(config, hooks=[poison_at(5)], quiet=True)
    event = RunFolder(config.folder()).read_log("events")[-1]
    assert (event["event"], event["step"]) == ("nonfinite", 6)


def test_skipping_a_nonfinite_loss_leaves_the_weights_alone(settings) -> None:
    class Weights(Hook):
        def __init__(self) -> None:
            self.seen: list[dict[str, torch.Tensor]] = []

        def after_step(self, run: Any, out: Any) -> None:
            self.seen.append({n: t.clone() for n, t in run.state.model.state_dict().items()})

    weights = Weights()
    config = settings("unlucky", on_nonfinite="skip", guard="off")
    result = train(config, hooks=[weights], quiet=True)
    assert result.summary["skipped_updates"] == 1
    for name in weights.seen[4]:  # weights and BatchNorm's statistics
        assert torch.equal(weights.seen[4][name], weights.seen[3][name])
        unchanged = torch.equal(weights.seen[5][name], weights.seen[4][name])
        assert not unchanged or name.startswith("normalize")


def test_kill_9_of_the_real_process(settings, tmp_path) -> None:
    whole = settings(out="whole", epochs=6)
    train(whole, quiet=True)
    broken = settings(out="broken", epochs=6)
    file = tmp_path / "settings.yaml"
    file.write_text(Resolved(broken, {}).stored())
    command = [sys.executable, "-m", "sora", "train", "--config", str(file), "--resume", "auto", "--quiet"]
    command += ["--out", str(broken.folder())]
    process = subprocess.Popen(command)
    metrics = broken.folder() / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.stat().st_size):
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert subprocess.run(command, check=False).returncode == 0
    assert contents(broken) == contents(whole)
