"""Killed anywhere and resumed: the same bytes as never killed."""

import errno
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from sora.errors import RunError
from sora.runs import RunFolder
from sora.settings import Resolved
from sora.training import Interrupted, train
from tests.training.helpers import (
    At,
    BuildSettings,
    Killed,
    Recorder,
    SignalAfter,
    contents,
    kill_at,
    kill_at_link,
    train_killed_at,
    weights_of,
)

CLEAN = {"attacks": ("clean",)}
L2 = CLEAN | {"norm": "l2", "eps": "1.5"}
ESTIMATE = {"ema": 0.9, "ema_buffers": "estimate"}
ADAMW = CLEAN | {"optimizer": "adamw", "lr": 1e-3, "lr_min": 1e-5}
ATAS = CLEAN | {"eps_warmup": 3, "set": {"atas.reset_every": 1}}


@pytest.mark.parametrize(
    ("method", "changes", "steps"),
    [
        ("sora", {}, [0, 1, 3, 5, 8]),
        ("sora", L2 | {"ema": 0.9}, [4]),
        ("fgsm", L2 | ESTIMATE, [3, 7]),
        ("fgsm", ADAMW | {"eps_warmup": 1.5}, [3, 7]),
        ("pgd-2", CLEAN, [5]),
        ("sora", CLEAN | {"optimizer": "muon", "lr": 0.05}, [3, 6]),
        ("atas", ATAS, [3, 7]),
        ("sora", CLEAN | {"image_sizes": (8, 12, 16)}, [2, 5]),
    ],
)
def test_killed_and_resumed_equals_never_killed(method, changes, steps, settings, trained) -> None:
    broken = settings(method, **changes)
    train_killed_at(broken, steps)
    assert contents(broken) == contents(trained(method, **changes))


@pytest.mark.parametrize("damage", ["truncated", "foreign", "garbage"])
def test_damaged_checkpoint_falls_back_to_the_older_one_and_says_so(damage, settings, trained, capfd) -> None:
    broken = settings(**CLEAN)
    with pytest.raises(Killed):
        train(broken, hooks=[kill_at(7)], quiet=True)
    newest = RunFolder(broken.folder()).checkpoints.newest_first()[0]
    foreign = RunFolder(trained("fgsm", **CLEAN).folder()).checkpoints.newest_first()[0]  # of other settings
    damaged = {"truncated": newest.read_bytes()[:-100], "foreign": foreign.read_bytes(), "garbage": bytes(64)}
    newest.write_bytes(damaged[damage])
    train(broken)
    printed = capfd.readouterr().err
    assert newest.name in printed
    assert "falling back" in printed
    assert "resuming from step 4" in printed
    assert contents(broken) == contents(trained(**CLEAN))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_writes_a_checkpoint_first(number: int, code: int, settings, trained) -> None:
    broken, before = settings(**CLEAN), signal.getsignal(number)
    with pytest.raises(Interrupted) as stopped:  # between two checkpoints
        train(broken, hooks=[SignalAfter(5, number)], quiet=True)
    assert stopped.value.exit_code == code
    assert signal.getsignal(number) == before
    train(broken, quiet=True)
    assert contents(broken) == contents(trained(**CLEAN))


def test_a_kill_before_the_name_of_the_best_checkpoint_is_made_up_for(settings, trained, monkeypatch) -> None:
    broken = settings()
    one, other = (RunFolder(config.folder()).checkpoints for config in (trained(), broken))
    best = one.read(one.best)[1]["step"]
    kill_at_link(monkeypatch, best)
    with pytest.raises(Killed):
        train(broken, quiet=True)
    monkeypatch.undo()
    assert not other.best.exists() or other.read(other.best)[1]["step"] < best
    train(broken, quiet=True)
    assert contents(broken) == contents(trained())
    expected, found = one.read(one.best), other.read(other.best)
    assert found[1]["step"] == best
    assert all(torch.equal(tensor, found[0][name]) for name, tensor in expected[0].items())


def test_full_disk_leaves_the_last_checkpoint_intact(settings, trained, monkeypatch) -> None:
    broken = settings(**CLEAN)
    save, calls = save_file, []

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
    assert contents(broken) == contents(trained(**CLEAN))


def test_nonfinite_loss_stops_with_step_values_and_checkpoint(settings: BuildSettings) -> None:
    def poison(run: Any, batch: Any) -> None:
        next(run.state.model.parameters()).data.fill_(torch.nan)

    config = settings()
    with pytest.raises(RunError, match=r"not finite at step 6 \(loss nan.*step-0-00000004"):
        train(config, hooks=[At(5, poison)], quiet=True)
    event = RunFolder(config.folder()).read_log("events")[-1]
    assert (event["event"], event["step"]) == ("nonfinite", 6)


def test_skipping_a_nonfinite_loss_leaves_the_weights_alone(settings: BuildSettings) -> None:
    weights = Recorder(weights_of)
    config = settings("unlucky", on_nonfinite="skip", guard="off")
    result = train(config, hooks=[weights], quiet=True)
    assert result.summary["skipped_updates"] == 1
    before, skipped, after = weights.values[3:6]
    for name in before:  # weights and BatchNorm's statistics
        assert torch.equal(skipped[name], before[name])
        assert not torch.equal(after[name], skipped[name]) or name.startswith("normalize")


def test_kill_9_of_the_real_process(settings: BuildSettings, trained: BuildSettings, tmp_path: Path) -> None:
    broken = settings(out="broken", epochs=6, **CLEAN)
    file = tmp_path / "settings.yaml"
    file.write_text(Resolved(broken, {}).stored())
    command = [sys.executable, "-m", "sora", "train", "--config", str(file), "--quiet"]
    process = subprocess.Popen([*command, "--out", str(broken.folder())])
    metrics = broken.folder() / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.stat().st_size):
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    train(broken, quiet=True)
    assert contents(broken) == contents(trained(epochs=6, **CLEAN))
