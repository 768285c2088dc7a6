"""Evaluations inside training: the check before it, no AutoAttack between epochs, kills and signals."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from sora.attacks import create_all
from sora.errors import UserError
from sora.runs import RunFolder
from sora.settings import Settings
from sora.training import Hook, Interrupted, saving, train
from sora.training.evaluating import attacks_while_training
from tests.training.disturbances import Killed

BuildSettings = Callable[..., Settings]


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
def test_a_model_is_checked_before_the_first_step(
    settings: BuildSettings, model: nn.Module, message: str
) -> None:
    steps: list[int] = []

    class Count(Hook):
        def before_step(self, run: Any, batch: Any) -> None:
            steps.append(run.state.step)

    config = settings("fgsm", eval_every=0, attacks=("clean",))
    with pytest.raises(UserError, match=message):
        train(config, model=model, hooks=[Count()], quiet=True)
    assert steps == []
    assert not config.folder().exists()  # the next attempt is not refused because of this one


def test_autoattack_is_left_out_between_epochs(settings: BuildSettings) -> None:
    names = [attack.name for attack in attacks_while_training(("clean", "aa", "pgd3"))]
    assert names == ["clean", "pgd10", "pgd3"]
    config = settings("fgsm", epochs=2, attacks=("clean", "apgd-ce"))
    result = train(config, quiet=True)
    lines = RunFolder(config.folder()).read_log("evals")
    assert [list(line["accuracy"]) for line in lines] == [["clean", "pgd10"]] * 2
    assert list(result.accuracy) == list(result.summary["accuracy"]) == ["clean", "apgd-ce"]


def test_longer_attacks_wait_for_the_end_where_weights_are_chosen() -> None:
    asked = ("clean", "fgsm", "pgd10", "pgd20", "pgd50", "aa")
    chosen = [attack.name for attack in attacks_while_training(asked, "best-robust")]
    assert chosen == ["clean", "fgsm", "pgd10"]
    assert [attack.name for attack in attacks_while_training(asked)] == list(asked[:-1])


class KillInTestSet(Hook):
    """Ends the process, so to speak, or sends a signal, in the middle of the final evaluation."""

    def __init__(self, action: Callable[[], None], after: int) -> None:
        self.action, self.left = action, after

    def on_evaluation(self, run: Any, evaluation: Any) -> None:
        if run.state.step == run.total_steps:  # not a hook of the model, which would be part of it
            self.model, self.handle = run.state.model, register_module_forward_hook(self.count)

    def count(self, module: nn.Module, *_: object) -> None:
        self.left -= module is self.model
        if self.left == 0:
            self.handle.remove()
            self.action()


def kill() -> None:
    raise Killed


def test_a_killed_final_evaluation_continues(settings: BuildSettings) -> None:
    attacks = ("clean", "fgsm", "pgd10", "apgd-ce")
    whole = train(settings("fgsm", out="whole", attacks=attacks), quiet=True)
    config = settings("fgsm", out="killed", attacks=attacks)
    with pytest.raises(Killed):
        train(config, hooks=[KillInTestSet(kill, 60)], quiet=True)
    folder = RunFolder(config.folder())
    units = list(folder.evaluation_state.rglob("*.safetensors"))
    assert {unit.name.split(".")[0] for unit in units} == {"clean", "fgsm", "pgd10"}
    resumed = train(config, quiet=True)
    assert resumed.record() == whole.record()
    assert not folder.evaluation_state.exists()
    (record,) = folder.read_evaluations()
    assert record["fingerprint"] == resumed.summary["fingerprint"]
    assert len(create_all(attacks)) == len(record["accuracy"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_an_evaluation_stops_at_once(settings: BuildSettings, number: int) -> None:
    config = settings("fgsm", attacks=("clean", "pgd10"))

    def interrupt() -> None:
        os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    with pytest.raises(Interrupted, match=r"during the evaluation.*--resume") as caught:
        train(config, hooks=[KillInTestSet(interrupt, 2)], quiet=True)
    assert caught.value.exit_code == 128 + number
    assert signal.getsignal(number) == before
    assert train(config, quiet=True).accuracy.keys() == {"clean", "pgd10"}


def test_an_evaluation_has_a_bar_or_lines(
    settings: BuildSettings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_snapshots_of_big_networks_are_limited(
    settings: BuildSettings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = settings("fgsm", out="a", attacks=("clean",), epochs=4)
    train(first)
    assert "snapshot" not in capsys.readouterr().err
    snapshots = list(RunFolder(first.folder()).snapshots.files().values())
    assert len(snapshots) == 4
    size = sum(tensor.nbytes for tensor in load_file(snapshots[0]).values())
    monkeypatch.setattr(saving, "SNAPSHOT_BYTES", 2 * size)
    second = settings("fgsm", out="b", attacks=("clean",), epochs=4)
    train(second)
    assert "one is kept every 2 epochs" in capsys.readouterr().err
    assert list(RunFolder(second.folder()).snapshots.files()) == [6, 12]
