"""Monitors, evaluations and snapshots measure a training without changing it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import sora
from sora import metrics
from sora.errors import UserError
from sora.evaluation import Evaluation
from sora.runs import RunFolder, plain_state
from sora.settings import Settings
from sora.training import Hook, evaluating, train
from sora.training.averaging import with_estimated_statistics
from tests.training.disturbances import Killed, kill_at
from tests.training.scripted import collapse_from, scripted_run

BuildSettings = Callable[..., Settings]


def test_weights_are_byte_identical_with_and_without_monitors(settings: BuildSettings) -> None:
    plain = settings(out="plain")
    watched = settings(out="watched", monitor=tuple(metrics.names()), monitor_every=1)
    train(plain, quiet=True)
    train(watched, quiet=True)
    one, other = (RunFolder(each.folder()) for each in (plain, watched))
    assert one.weights.read_bytes() == other.weights.read_bytes()
    assert [line["step"] for line in other.read_log("monitors")] == list(range(1, 10))
    assert one.read_log("monitors") == []


def test_lines_are_written_at_the_steps_asked_for(settings: BuildSettings) -> None:
    config = settings(monitor="kl,pgd", monitor_every=4)
    train(config, quiet=True)
    lines = RunFolder(config.folder()).read_log("monitors")
    assert [line["step"] for line in lines] == [4, 8]
    keys = {"step", "epoch", "attempt", "pert_align", "kl", "pgd", "n", "split"}
    assert all(line.keys() == keys for line in lines)
    assert all(0 <= line["pgd"] <= 1 and line["kl"] >= 0 and line["n"] == 20 for line in lines)
    assert {line["split"] for line in lines} == {"holdout"}


def test_training_makes_only_the_methods_own_passes_when_off(settings: BuildSettings) -> None:
    modes: dict[str, list[bool]] = {"off": [], "on": []}
    for name, monitor in (("off", ()), ("on", ("kl",))):
        model = nn.Sequential(nn.Flatten(), nn.Linear(256, 10))
        model.register_forward_hook(lambda module, *_, seen=modes[name]: seen.append(module.training))
        watching = {"eval_every": 0, "attacks": ("clean",), "monitor": monitor, "monitor_every": 3}
        train(settings("fgsm", out=name, **watching), model=model, quiet=True)
    steps, checks = 9, 2  # the model is checked once, before the first step
    assert modes["off"].count(True) == modes["on"].count(True) == 2 * steps
    assert False not in modes["off"][checks : checks + 2 * steps]  # what follows is the test set
    assert modes["on"].count(False) == modes["off"].count(False) + 2 * (steps // 3)


def test_an_unknown_monitor_is_refused(settings: BuildSettings) -> None:
    with pytest.raises(UserError, match="'gradalig'; did you mean 'gradalign'"):
        settings(monitor="gradalig")


def test_without_held_out_images_a_slice_of_the_training_images_is_watched(settings: BuildSettings) -> None:
    alone, watched = (
        settings(out=name, holdout=0, eval_every=every, monitor=monitor, monitor_every=3)
        for name, every, monitor in (("alone", 0, ()), ("watched", 1, ("pgd",)))
    )
    train(alone, quiet=True)
    result = train(watched, quiet=True)
    one, other = (RunFolder(each.folder()) for each in (alone, watched))
    assert one.weights.read_bytes() == other.weights.read_bytes()
    lines = other.read_log("evals") + other.read_log("monitors")
    assert {line["split"] for line in lines} == {"training"}
    assert [line["step"] for line in other.read_log("evals")] == [3, 6, 9]
    assert result.summary["n_train"] == 96
    assert not other.checkpoints.best.exists()  # images that are trained on choose no weights


def test_evaluations_reach_hooks_of_the_user(settings: BuildSettings) -> None:
    class Accuracies(Hook):
        def __init__(self) -> None:
            self.clean: list[float] = []

        def on_evaluation(self, run: Any, evaluation: Any) -> None:
            self.clean.append(evaluation.accuracy["clean"])

    hook, config = Accuracies(), settings()
    train(config, hooks=[hook], quiet=True)
    lines = RunFolder(config.folder()).read_log("evals")
    assert hook.clean == [line["accuracy"]["clean"] for line in lines]


@pytest.mark.parametrize("overfitted", [True, False])
def test_overfitting_without_an_alarm_is_reported(
    settings: BuildSettings,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    overfitted: bool,
) -> None:
    labels = torch.arange(10).repeat(10)
    predicted = {"clean": labels, "fgsm": labels, "pgd10": labels.roll(1) if overfitted else labels}
    found = Evaluation(sora.Linf("8/255"), labels, 10, predicted, {name: {} for name in predicted})
    monkeypatch.setattr(evaluating, "evaluate_watched", lambda *_: found)
    train(settings(epochs=1))
    printed = capfd.readouterr().err
    assert ("epoch 1: overfitted: the model withstands FGSM but not PGD-10" in printed) == overfitted


class KillInAttempt(Hook):
    """Kills before the first step of an attempt."""

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt

    def before_step(self, run: Any, batch: Any) -> None:
        if run.state.attempt == self.attempt:
            raise Killed


class TestSnapshots:
    LONG: ClassVar[dict[str, Any]] = {
        "epochs": 8,
        "batch_size": 8,
        "log_every": 4,
        "eval_every": 0,
        "attacks": ("clean",),
    }

    def run(self, settings: BuildSettings, **changes: Any) -> tuple[RunFolder, dict[int, Any]]:
        config = settings("scripted", **self.LONG | changes)
        weights: dict[int, Any] = {}

        class Keep(Hook):
            def after_step(self, run: Any, out: Any) -> None:
                weights[run.state.step] = run.state.model.state_dict()["network.stem.weight"].clone()

        scripted_run(config, Keep())
        return RunFolder(config.folder()), weights

    def test_every_epoch_and_around_an_alarm(self, settings: BuildSettings, script: Any) -> None:
        script(collapse_from(60))
        folder, weights = self.run(settings)
        epochs, around = set(range(12, 97, 12)), {60, 64, 68}  # the alarm comes at step 64
        assert set(folder.snapshots.files()) == epochs | around
        for step, path in folder.snapshots.files().items():
            assert torch.equal(load_file(path)["network.stem.weight"], weights[step])

    @pytest.mark.parametrize("killed_at", [70, 75])  # before the alarm of step 72, and after
    def test_those_around_an_alarm_survive_a_kill(
        self, settings: BuildSettings, script: Any, killed_at: int
    ) -> None:
        script(collapse_from(67))
        options = self.LONG | {"checkpoint_every": 3}
        whole, broken = (settings("scripted", out=name, **options) for name in ("whole", "broken"))
        scripted_run(whole)
        with pytest.raises(Killed):
            scripted_run(broken, kill_at(killed_at))
        scripted_run(broken)
        one, other = (RunFolder(config.folder()).snapshots.files() for config in (whole, broken))
        assert {68, 72, 76} <= set(one)
        assert {s: p.read_bytes() for s, p in one.items()} == {s: p.read_bytes() for s, p in other.items()}

    def test_a_kill_after_a_return_adds_none(self, settings: BuildSettings, script: Any) -> None:
        script(collapse_from(60, attempts=2))
        options = self.LONG | {"guard": "rollback", "checkpoint_every": 3}
        whole, broken = (settings("scripted", out=name, **options) for name in ("whole", "broken"))
        scripted_run(whole)
        with pytest.raises(Killed):
            scripted_run(broken, KillInAttempt(1))
        scripted_run(broken)
        names = [sorted(p.name for p in (c.folder() / "snapshots").iterdir()) for c in (whole, broken)]
        assert names[0] == names[1]

    def test_a_calm_run_keeps_its_epochs_only(self, settings: BuildSettings) -> None:
        folder, _ = self.run(settings)
        assert list(folder.snapshots.files()) == list(range(12, 97, 12))

    def test_nothing_after_a_return_belongs_to_the_alarm_before_it(
        self, settings: BuildSettings, script: Any
    ) -> None:
        script(collapse_from(60, attempts=1))
        folder, _ = self.run(settings, guard="rollback")
        assert set(folder.snapshots.files()) == set(range(12, 97, 12)) | {60, 64}

    def test_statistics_are_estimated_only_for_what_is_written(
        self, settings: BuildSettings, script: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        script(collapse_from(65))
        estimate, calls = with_estimated_statistics, []

        def counted(*arguments: Any) -> nn.Module:
            calls.append(1)
            return estimate(*arguments)

        monkeypatch.setattr("sora.training.run.with_estimated_statistics", counted)
        expected: dict[str, torch.Tensor] = {}

        class Keep(Hook):
            def after_step(self, run: Any, out: Any) -> None:
                if run.state.step == 64:
                    expected.update(plain_state(run.evaluated))

        config = settings("scripted", **self.LONG, ema=0.9, ema_buffers="estimate")
        scripted_run(config, Keep())
        files = RunFolder(config.folder()).snapshots.files()
        assert set(files) == {*range(12, 97, 12), 64, 68}  # 64, 68 and 72 are around the alarm
        assert len(calls) == len(files) + 3  # 72 is written twice; one is this test's, one the result's
        for name, tensor in load_file(files[64]).items():
            assert torch.equal(tensor, expected[name]), name

    def test_none_are_kept_when_off(self, settings: BuildSettings, script: Any) -> None:
        script(collapse_from(60))
        folder, _ = self.run(settings, snapshots=False)
        assert folder.snapshots.files() == {}
        assert not (folder.path / "snapshots").exists()
