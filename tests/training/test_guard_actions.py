"""What each of the guard's actions does about an alarm, on runs whose PertAlign is scripted."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch

import sora
from sora.training import loop, train
from sora.training.config import TrainConfig
from sora.training.console import Interrupted

Settings = Callable[..., TrainConfig]
Script = Callable[[int, int], float]  # (attempt, step) -> PertAlign
LONG = {"epochs": 8, "batch_size": 8, "log_every": 4, "checkpoint_every": 0}  # 96 steps
LONG |= {"eval_every": 0, "attacks": ("clean",), "snapshots": False}
CALM, COLLAPSED = 0.8, 0.0


def collapse_from(first: int, attempts: int = 99) -> Script:
    """Calm, then collapsed from a step on, in the first so many attempts."""
    return lambda attempt, step: COLLAPSED if attempt < attempts and step >= first else CALM


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Script], None]:
    """Replace the PertAlign of every step by a script."""

    def install(script: Script) -> None:
        real = loop._Run._train_on

        def train_on(self: Any, batch: Any) -> None:
            real(self, batch)
            value = script(self.state.attempt, self.state.step)
            self.journal._recent[-1]["pert_align"] = torch.tensor(value)

        monkeypatch.setattr(loop._Run, "_train_on", train_on)

    return install


def events(config: TrainConfig) -> list[tuple[str, int, int]]:
    text = (config.folder() / "events.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    return [(row["event"], row["step"], row["attempt"]) for row in rows]


class TestActions:
    def test_warn_tells_and_changes_nothing(self, settings: Settings, scripted: Any) -> None:
        scripted(collapse_from(60))
        quiet, warned = (settings("fgsm", out=name, guard=name, **LONG) for name in ("off", "warn"))
        train(quiet, quiet=True)
        summary = train(warned, quiet=True)
        weights = [(config.folder() / "model.safetensors").read_bytes() for config in (quiet, warned)]
        assert weights[0] == weights[1]
        assert events(quiet) == []
        assert [word for word, *_ in events(warned)] == ["alarm"]
        told = {"step": 64, "epoch": 6, "attempt": 0, "action": "warn", "recovered": None, "returned": None}
        assert summary["co"]["events"] == [told]
        assert summary["weights"] == "last"

    def test_alarm_is_said_on_the_console(
        self, settings: Settings, scripted: Any, capsys: pytest.CaptureFixture[str]
    ) -> None:
        scripted(collapse_from(60))
        train(settings("fgsm", **LONG))
        said = capsys.readouterr().err
        assert "step 64 (epoch 6): catastrophic overfitting" in said
        assert "PertAlign average 0.2" in said

    def test_stop_hands_over_the_last_good_weights(self, settings: Settings, scripted: Any) -> None:
        scripted(collapse_from(60))
        config = settings("fgsm", guard="stop", **LONG)
        summary = train(config, quiet=True)
        # The average is last above 0.40 at step 62; states are kept at every fourth step here.
        assert events(config) == [("alarm", 64, 0), ("returned", 60, 0)]
        assert summary["weights"] == "last_good"
        assert json.loads((config.folder() / "model.json").read_text())["weights"] == "last_good"
        short = settings("fgsm", out="same", guard="off", **LONG)
        reached = weights_at(short, 60)
        handed = sora.load(config.folder()).state_dict()
        assert all(torch.equal(handed[name], tensor) for name, tensor in reached.items())

    def test_stop_begins_again_while_nothing_was_good(
        self, settings: Settings, scripted: Any, capsys: pytest.CaptureFixture[str]
    ) -> None:
        scripted(lambda attempt, step: 0.1 if attempt == 0 else collapse_from(60)(attempt, step))
        config = settings("fgsm", guard="stop", **LONG)
        assert train(config)["weights"] == "last_good"
        assert events(config) == [("alarm", 41, 0), ("returned", 0, 0), ("alarm", 64, 1), ("returned", 60, 1)]
        assert "never robust so far" in capsys.readouterr().err

    def test_the_initial_weights_are_handed_over_if_nothing_helps(
        self, settings: Settings, scripted: Any
    ) -> None:
        scripted(lambda attempt, step: 0.1)
        config = settings("fgsm", guard="stop", **LONG)
        assert train(config, quiet=True)["weights"] == "initial"
        assert events(config) == [(w, s, k) for k in range(4) for w, s in (("alarm", 41), ("returned", 0))]

    def test_rollback_goes_on_from_the_last_good_state_with_other_batches(
        self, settings: Settings, scripted: Any
    ) -> None:
        scripted(collapse_from(60, attempts=1))
        config = settings("fgsm", guard="rollback", **LONG)
        summary = train(config, quiet=True)
        assert events(config) == [("alarm", 64, 0), ("returned", 60, 0)]
        assert summary["weights"] == "last"
        assert summary["co"]["events"][0]["returned"] == 60
        rows = [json.loads(line) for line in (config.folder() / "metrics.jsonl").read_text().splitlines()]
        assert [row["step"] for row in rows if row["attempt"] == 1] == list(range(64, 97, 4))
        first, second = ([r["loss"] for r in rows if r["attempt"] == k and r["step"] == 64] for k in (0, 1))
        assert first != second

    def test_no_state_is_good_before_the_guard_has_heard_it(self, settings: Settings, scripted: Any) -> None:
        scripted(collapse_from(56, attempts=1))  # an epoch ends at step 60, between two intervals of eleven
        config = settings("fgsm", guard="rollback", **LONG | {"log_every": 11})
        train(config, quiet=True)
        assert events(config) == [("alarm", 60, 0), ("returned", 55, 0)]

    def test_rollback_gives_up_after_three_and_hands_over_good_weights(
        self, settings: Settings, scripted: Any
    ) -> None:
        scripted(collapse_from(60))
        config = settings("fgsm", guard="rollback", **LONG)
        summary = train(config, quiet=True)
        told = events(config)
        assert [word for word, *_ in told] == ["alarm", "returned"] * 4
        assert [attempt for word, _, attempt in told if word == "alarm"] == [0, 1, 2, 3]
        assert summary["weights"] == "last_good"
        assert len(summary["co"]["events"]) == 4

    def test_rollback_of_a_run_that_never_was_good_starts_again_with_growing_eps(
        self, settings: Settings, scripted: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scripted(lambda attempt, step: 0.1 if attempt == 0 else CALM)
        factors: dict[int, list[float]] = {0: [], 1: []}
        real = loop._Run._train_on

        def spy(self: Any, batch: Any) -> None:
            real(self, batch)
            factors[self.state.attempt].append(self.state.method.threat.eps / self.threat.eps)

        monkeypatch.setattr(loop._Run, "_train_on", spy)
        config = settings("fgsm", guard="rollback", **LONG)
        train(config, quiet=True)
        assert events(config) == [("alarm", 41, 0), ("returned", 0, 0)]
        assert set(factors[0]) == {1.0}
        assert factors[1] == pytest.approx([min(1, (step + 1) / 48) for step in range(96)])

    def test_pgd_is_the_attack_while_the_alarm_stands(
        self, settings: Settings, scripted: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scripted(lambda attempt, step: COLLAPSED if 40 <= step < 60 else CALM)
        used: list[str] = []
        for cls in (sora.methods.info("pgd").cls, sora.methods.info("fgsm").cls):
            name, real = cls.__name__, cls.craft

            def craft(self: Any, *known: Any, name: str = name, real: Any = real) -> Any:
                used.append(name)
                return real(self, *known)

            monkeypatch.setattr(cls, "craft", craft)
        config = settings("fgsm", guard="pgd", **LONG)
        summary = train(config, quiet=True)
        assert [word for word, *_ in events(config)] == ["alarm", "recovered"]
        alarm, recovered = (step for _, step, _ in events(config))
        assert summary["co"]["events"][0]["recovered"] == recovered
        # The attack changes where the log is written, the next multiple of four.
        first, last = (math.ceil(step / 4) * 4 for step in (alarm, recovered))
        assert used == ["FGSM"] * first + ["PGD"] * (last - first) + ["FGSM"] * (96 - last)

    @pytest.mark.parametrize("kill_at", [30, 63, 66])
    def test_a_killed_rollback_ends_with_the_same_bytes(
        self, settings: Settings, scripted: Any, monkeypatch: pytest.MonkeyPatch, kill_at: int
    ) -> None:
        scripted(collapse_from(60, attempts=2))
        whole, broken = (settings("fgsm", out=name, guard="rollback", **LONG) for name in ("whole", "broken"))
        train(whole, quiet=True)
        count, real = 0, loop._Run._train_on

        def killed(self: Any, batch: Any) -> None:
            nonlocal count
            count += 1
            if count == kill_at:
                os.kill(os.getpid(), signal.SIGTERM)
            real(self, batch)

        monkeypatch.setattr(loop._Run, "_train_on", killed)
        with pytest.raises(Interrupted):
            train(broken, quiet=True)
        train(broken, quiet=True)
        for name in ("model.safetensors", "events.jsonl", "metrics.jsonl"):
            assert (whole.folder() / name).read_bytes() == (broken.folder() / name).read_bytes()


def weights_at(config: TrainConfig, step: int) -> dict[str, torch.Tensor]:
    """The weights an undisturbed run has after a step."""
    found: dict[str, torch.Tensor] = {}
    real = loop._Run._train_on

    def watch(self: Any, batch: Any) -> None:
        real(self, batch)
        if self.state.step == step:
            found.update({name: tensor.clone() for name, tensor in self.state.model.state_dict().items()})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop._Run, "_train_on", watch)
        train(config, quiet=True)
    return found


def test_good_states_are_not_kept_for_an_interruption(settings: Settings, scripted: Any) -> None:
    scripted(collapse_from(200))
    config = settings("fgsm", guard="stop", **LONG)
    with pytest.MonkeyPatch.context() as patch:
        real = loop._Run._train_on

        def killed(self: Any, batch: Any) -> None:
            real(self, batch)
            if self.state.step == 51:
                os.kill(os.getpid(), signal.SIGTERM)

        patch.setattr(loop._Run, "_train_on", killed)
        with pytest.raises(Interrupted):
            train(config, quiet=True)
    checkpoints = config.folder() / "checkpoints"
    good, newest = checkpoints / "last_good.safetensors", checkpoints / "step-0-00000051.safetensors"
    assert newest.exists()
    assert not good.samefile(newest)
