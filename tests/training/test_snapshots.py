"""Snapshots: weights of every epoch, and of the log steps around an alarm."""

from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from sora.runs import RunFolder, plain_state
from sora.settings import Settings
from sora.training import Hook, saving, train
from sora.training.run import with_estimated_statistics
from tests.training.helpers import (
    BuildSettings,
    Follow,
    Killed,
    Recorder,
    collapse_from,
    kill_at,
    scripted_run,
    train_killed_at,
)

LONG: dict[str, Any] = {"epochs": 6, "batch_size": 8, "log_every": 4}  # 72 steps, 12 per epoch
LONG |= {"eval_every": 0, "attacks": ("clean",)}
EPOCHS = set(range(12, 73, 12))


def snapshots(config: Settings) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (config.folder() / "snapshots").iterdir()}


def test_every_epoch_and_around_an_alarm(settings: BuildSettings, script: Any) -> None:
    script(collapse_from(48))
    config = settings("scripted", **LONG)
    weights = Recorder(lambda run: run.state.model.state_dict()["network.stem.weight"].clone())
    scripted_run(config, weights)
    files = RunFolder(config.folder()).snapshots.files()
    assert set(files) == EPOCHS | {48, 52, 56}  # the alarm comes at step 52
    for step, path in files.items():
        assert torch.equal(load_file(path)["network.stem.weight"], weights.values[step - 1])


def test_those_around_an_alarm_survive_kills(settings: BuildSettings, script: Any) -> None:
    script(collapse_from(57))
    options = LONG | {"checkpoint_every": 3}
    whole, broken = (settings("scripted", out=name, **options) for name in ("whole", "broken"))
    scripted_run(whole)
    train_killed_at(broken, [58, 63], Follow())  # before the alarm of step 60, and after
    assert {56, 60, 64} <= set(RunFolder(whole.folder()).snapshots.files())
    assert snapshots(whole) == snapshots(broken)


def test_nothing_after_a_return_belongs_to_the_alarm_before_it(settings: BuildSettings, script: Any) -> None:
    script(collapse_from(48, attempts=1))
    options = LONG | {"guard": "rollback", "checkpoint_every": 3}
    whole, broken = (settings("scripted", out=name, **options) for name in ("whole", "broken"))
    scripted_run(whole)
    assert set(RunFolder(whole.folder()).snapshots.files()) == EPOCHS | {48, 52}
    with pytest.raises(Killed):
        scripted_run(broken, kill_at(48, attempts=(1,)))
    scripted_run(broken)
    assert snapshots(whole) == snapshots(broken)


def test_a_calm_run_keeps_its_epochs_only_and_few_of_a_big_model(settings, capsys, monkeypatch) -> None:
    first, second = (settings("fgsm", out=name, attacks=("clean",), epochs=4) for name in "ab")
    train(first)
    assert "snapshot" not in capsys.readouterr().err
    files = RunFolder(first.folder()).snapshots.files()
    assert list(files) == [3, 6, 9, 12]
    size = sum(tensor.nbytes for tensor in load_file(files[3]).values())
    monkeypatch.setattr(saving, "SNAPSHOT_BYTES", 2 * size)
    train(second)
    assert "one is kept every 2 epochs" in capsys.readouterr().err
    assert list(RunFolder(second.folder()).snapshots.files()) == [6, 12]


def test_statistics_are_estimated_only_for_what_is_written(settings, script, monkeypatch) -> None:
    script(collapse_from(53))
    estimate, calls = with_estimated_statistics, []

    def counted(*arguments: Any) -> nn.Module:
        calls.append(1)
        return estimate(*arguments)

    monkeypatch.setattr("sora.training.run.with_estimated_statistics", counted)
    expected: dict[str, torch.Tensor] = {}

    class Keep(Hook):
        def after_step(self, run: Any, out: Any) -> None:
            if run.state.step == 52:
                expected.update(plain_state(run.evaluated))

    config = settings("scripted", **LONG, ema=0.9, ema_buffers="estimate")
    scripted_run(config, Keep())
    files = RunFolder(config.folder()).snapshots.files()
    assert set(files) == EPOCHS | {52, 56}  # 52, 56 and 60 are around the alarm
    assert len(calls) == len(files) + 3  # 60 is written twice; one is this test's, one the result's
    for name, tensor in load_file(files[52]).items():
        assert torch.equal(tensor, expected[name]), name


def test_none_are_kept_when_off(settings: BuildSettings, script: Any) -> None:
    script(collapse_from(48))
    config = settings("scripted", **LONG, snapshots=False)
    scripted_run(config)
    assert not (config.folder() / "snapshots").exists()
