"""Measurements inside training: the check before it, monitors, evaluations, interrupted ones."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

import sora
from sora import attacks, metrics
from sora.attacks import Attack
from sora.errors import UserError
from sora.evaluation import Evaluation
from sora.runs import RunFolder
from sora.threat import Threat
from sora.training import Hook, Interrupted, evaluating, train
from sora.training.evaluating import attacks_while_training
from tests.training.helpers import BuildSettings, Killed, SignalAfter, contents


class Own(nn.Module):
    """A module of the user's own with some outputs, changed by a function."""

    def __init__(self, outputs: int = 10, change: Callable[[Tensor], Tensor] = nn.Identity()) -> None:  # noqa: B008
        super().__init__()
        self.layer, self.change = nn.Linear(256, outputs), change

    def forward(self, x: Tensor) -> Tensor:
        return self.change(self.layer(x.flatten(1)))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Own(12), "has 12 classes, the data has 10"),
        (Own(10, lambda z: z.softmax(1)), "returns probabilities"),
        (Own(10, lambda z: z * torch.nan), "NaN"),
        (Own(10, lambda z: z.detach()), "cannot be differentiated"),
        (Own(10, lambda z: z + (z - z.detach()).square().sum(1, True).sqrt()), "input gradients are NaN"),
    ],
)
def test_a_model_is_checked_before_the_first_step(settings, model: nn.Module, message: str) -> None:
    config = settings("fgsm", eval_every=0, attacks=("clean",))
    with pytest.raises(UserError, match=message):
        train(config, model=model, quiet=True)
    assert not config.folder().exists()  # the next attempt is not refused because of this one


def test_images_grow_over_the_epochs_and_a_model_for_one_size_is_refused(settings: BuildSettings) -> None:
    sides: list[int] = []

    class Sides(Hook):
        def before_step(self, run: Any, batch: Any) -> None:
            sides.append(batch.x.shape[2])

    train(settings("n-fgsm", image_sizes=(8, 16), attacks=("clean",)), hooks=[Sides()], quiet=True)
    assert sides == [8] * 6 + [16] * 3  # three epochs of three steps
    config = settings("n-fgsm", out="other", image_sizes=(8, 16), attacks=("clean",))
    with pytest.raises(UserError, match="cannot be trained on images of side 8"):
        train(config, model=Own(), quiet=True)
    assert not config.folder().exists()


class TestMonitors:
    def test_they_measure_at_the_steps_asked_for_and_change_no_weights(self, settings, trained) -> None:
        watched = settings(monitor=tuple(metrics.names()), monitor_every=4)
        train(watched, quiet=True)
        one, other = (RunFolder(each.folder()) for each in (trained(), watched))
        assert one.weights.read_bytes() == other.weights.read_bytes()
        assert one.read_log("monitors") == []
        lines = other.read_log("monitors")
        assert [line["step"] for line in lines] == [4, 8]
        keys = {"step", "epoch", "attempt", "pert_align", "n", "split", *metrics.names()}
        assert all(line.keys() == keys for line in lines)
        assert all(0 <= line["pgd"] <= 1 and line["kl"] >= 0 and line["n"] == 20 for line in lines)
        assert {line["split"] for line in lines} == {"holdout"}

    def test_training_makes_only_the_methods_own_passes_when_off(self, settings: BuildSettings) -> None:
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


@pytest.mark.parametrize("overfitted", [True, False])
def test_overfitting_without_an_alarm_is_reported(settings, monkeypatch, capfd, overfitted: bool) -> None:
    labels = torch.arange(10).repeat(10)
    predicted = {"clean": labels, "fgsm": labels, "pgd10": labels.roll(1) if overfitted else labels}
    found = Evaluation(sora.Linf("8/255"), labels, 10, predicted, {name: {} for name in predicted})
    monkeypatch.setattr(evaluating, "evaluate_watched", lambda *_: found)
    train(settings(epochs=1, attacks=("clean",)))
    printed = capfd.readouterr().err
    assert ("epoch 1: overfitted: the model withstands FGSM but not PGD-10" in printed) == overfitted


def test_autoattack_is_left_out_between_epochs_and_longer_pgd_where_weights_are_chosen(settings) -> None:
    asked = ("clean", "fgsm", "pgd10", "pgd20", "pgd50", "aa")
    assert [attack.name for attack in attacks_while_training(asked)] == list(asked[:-1])
    chosen = [attack.name for attack in attacks_while_training(asked, "best-robust")]
    assert chosen == ["clean", "fgsm", "pgd10"]
    assert [attack.name for attack in attacks_while_training(("clean", "aa"))] == ["clean", "pgd10"]
    config = settings("fgsm", epochs=1, attacks=("clean", "apgd-ce"))
    result = train(config, quiet=True)
    lines = RunFolder(config.folder()).read_log("evals")
    assert [list(line["accuracy"]) for line in lines] == [["clean", "pgd10"]]
    assert list(result.accuracy) == list(result.summary["accuracy"]) == ["clean", "apgd-ce"]


def test_an_evaluation_has_a_bar_or_lines(settings: BuildSettings, capsys, monkeypatch) -> None:
    monkeypatch.setattr("sora.evaluation.progress.INTERVAL", -1.0)
    train(settings("fgsm", out="piped", epochs=1))
    printed = capsys.readouterr().err
    assert "pgd10, batch 1 of 1:" in printed
    assert "\n\n" not in printed
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then treats standard error as a terminal
    monkeypatch.setenv("TERM", "xterm")
    train(settings("fgsm", out="terminal", epochs=1))
    assert "pgd10, batch 1 of 1" in capsys.readouterr().err
    train(settings("fgsm", out="quiet", epochs=1), quiet=True)
    assert capsys.readouterr().err == ""


class KillInTestSet(Hook):
    """Ends the process, so to speak, in the middle of the final evaluation."""

    def __init__(self, after: int) -> None:
        self.left = after

    def on_evaluation(self, run: Any, evaluation: Any) -> None:
        if run.state.step == run.total_steps:  # not a hook of the model, which would be part of it
            self.model, self.handle = run.state.model, register_module_forward_hook(self.count)

    def count(self, module: nn.Module, *_: object) -> None:
        self.left -= module is self.model
        if self.left == 0:
            self.handle.remove()
            raise Killed


def test_a_killed_final_evaluation_continues(settings: BuildSettings) -> None:
    attacks = ("clean", "fgsm", "pgd10", "apgd-ce")
    whole, config = (settings("fgsm", out=name, epochs=1, attacks=attacks) for name in ("whole", "killed"))
    expected = train(whole, quiet=True)
    with pytest.raises(Killed):
        train(config, hooks=[KillInTestSet(18)], quiet=True)  # in apgd-ce, mostly on a copy of the model
    folder = RunFolder(config.folder())
    units = list(folder.evaluation_state.rglob("*.safetensors"))
    assert {unit.name.split(".")[0] for unit in units} == {"clean", "fgsm", "pgd10"}
    resumed = train(config, quiet=True)
    assert resumed.record() == expected.record()
    assert not folder.evaluation_state.exists()
    (record,) = folder.read_evaluations()
    assert record["fingerprint"] == resumed.summary["fingerprint"]
    assert len(record["accuracy"]) == len(attacks)


class Interrupting:
    """Sends this process a signal at one of the calls of an attack."""

    at = calls = survived = 0
    number = signal.SIGINT


@pytest.fixture
def interrupting(_own_methods: None) -> type[Interrupting]:
    """An attack `hours` that is interrupted while it runs."""

    @attacks.register("hours", "is interrupted")
    @dataclass(frozen=True)
    class Hours(Attack):
        def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int = 0) -> Tensor:
            Interrupting.calls += 1
            if Interrupting.calls == Interrupting.at:
                os.kill(os.getpid(), Interrupting.number)
                for _ in range(1000):  # the handler runs between two of these
                    model(x[:1])
                Interrupting.survived += 1
            return x

    Interrupting.calls = Interrupting.survived = Interrupting.at = 0
    return Interrupting


def test_a_signal_ends_an_evaluation_at_once_and_the_run_continues_there(settings, interrupting) -> None:
    whole, broken = (
        settings(out=name, attacks=("clean", "hours"), checkpoint_every=0) for name in ("whole", "broken")
    )
    train(whole, quiet=True)
    # An epoch's evaluation, and the final one, which comes after the resumed and the last epoch's.
    for number, call, step in ((signal.SIGINT, 2, 6), (signal.SIGTERM, 3, 9)):
        interrupting.number, interrupting.calls, interrupting.at = number, 0, call
        words = f"{signal.Signals(number).name} during the evaluation at step {step}.*--resume"
        with pytest.raises(Interrupted, match=words) as stopped:
            train(broken, quiet=True)
        assert stopped.value.exit_code == 128 + number
        newest = RunFolder(broken.folder()).checkpoints.newest_first()[0]
        assert newest.name == f"step-0-{step:08d}.safetensors"
    assert interrupting.survived == 0
    interrupting.at = 0
    train(broken, quiet=True)
    assert contents(broken) == contents(whole)
    # A signal in an epoch's last step does not wait for the evaluation.
    late = settings(out="late", attacks=("clean", "hours"), checkpoint_every=0)
    interrupting.calls = 0
    with pytest.raises(Interrupted, match="at step 3"):
        train(late, hooks=[SignalAfter(3, signal.SIGTERM)], quiet=True)
    assert interrupting.calls == 0
    train(late, quiet=True)
    assert contents(late) == contents(whole)
