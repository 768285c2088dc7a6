"""What the guard watches in a run, and what each action does about an alarm."""

import json
import math
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import sora
from sora import methods, metrics
from sora.errors import RunError
from sora.evaluation.subject import subject_of_run
from sora.experiments.compare import row_name
from sora.runs import RunFolder
from sora.settings import Settings
from sora.training import Hook, Interrupted, alarms, train
from tests.training.helpers import (
    CALM,
    COLLAPSED,
    At,
    BuildSettings,
    Follow,
    Killed,
    Recorder,
    SignalAfter,
    collapse_from,
    contents,
    kill_at_link,
    scripted_run,
    train_killed_at,
    weights_of,
)

LONG = {"epochs": 6, "batch_size": 8, "log_every": 4, "checkpoint_every": 0}  # 72 steps, 12 per epoch
LONG |= {"eval_every": 0, "attacks": ("clean",), "snapshots": False}
LINEAR = LONG | {"model": "tests.training.helpers:linear", "width": None}


def events(settings: Settings) -> list[tuple[str, int, int]]:
    lines = RunFolder(settings.folder()).read_log("events")
    return [(line["event"], line["step"], line["attempt"]) for line in lines]


def steps(settings: Settings) -> list[tuple[str, int]]:
    return [(event, step) for event, step, _ in events(settings)]


def test_warn_reports_and_changes_nothing(settings: BuildSettings, script: Any, capsys: Any) -> None:
    script(collapse_from(48))
    silent, warned = (settings("scripted", out=name, guard=name, **LINEAR) for name in ("off", "warn"))
    scripted_run(silent)
    assert capsys.readouterr().err == ""
    summary = scripted_run(warned, quiet=False)
    printed = capsys.readouterr().err
    assert "step 52 (epoch 5): catastrophic overfitting" in printed
    assert "PertAlign average 0.2" in printed
    weights = [RunFolder(each.folder()).weights.read_bytes() for each in (silent, warned)]
    assert weights[0] == weights[1]
    assert events(silent) == []
    assert [event for event, *_ in events(warned)] == ["alarm"]
    alarm = {"step": 52, "epoch": 5, "attempt": 0, "action": "warn"}
    assert summary["co"]["events"] == [alarm | dict.fromkeys(("recovered", "returned", "changed"))]
    assert summary["co"]["guard"] == "warn"
    assert summary["weights"] == "last"


def test_stop_hands_over_the_last_good_weights_also_after_a_kill_before_they_have_their_name(
    settings: BuildSettings, script: Any, monkeypatch: Any
) -> None:
    script(collapse_from(48))
    whole, broken = (settings("scripted", out=name, guard="stop", **LONG) for name in ("whole", "broken"))
    weights = Recorder(weights_of)
    summary = scripted_run(whole, weights)
    # The average is last above 0.50 at step 49; states are kept at every fourth step here.
    assert events(whole) == [("alarm", 52, 0), ("returned", 48, 0)]
    assert summary["weights"] == RunFolder(whole.folder()).read_model()["weights"] == "last_good"
    handed_over = sora.load(whole.folder()).state_dict()
    assert all(torch.equal(handed_over[name], tensor) for name, tensor in weights.values[47].items())
    kill_at_link(monkeypatch, 48)
    with pytest.raises(Killed):
        scripted_run(broken)
    monkeypatch.undo()
    scripted_run(broken)
    assert contents(whole) == contents(broken)


@pytest.mark.parametrize(
    ("guard", "was_good", "attempts", "advice"),
    [
        ("stop", False, 1, "; try --guard rollback or --eps-warmup"),
        ("rollback", False, 4, "; --eps-warmup may help"),
        ("rollback", True, 4, ""),
    ],
)
def test_a_run_gives_up_with_the_last_good_weights_or_the_initial_ones(
    settings: BuildSettings, script: Any, capsys: Any, guard: str, was_good: bool, attempts: int, advice: str
) -> None:
    script(collapse_from(48) if was_good else lambda attempt, step: 0.1)
    config = settings("scripted", guard=guard, **LINEAR)
    summary = scripted_run(config, quiet=False)
    expected = zip(("alarm", "returned"), (52, 48) if was_good else (44, 0), strict=True)
    assert steps(config) == list(expected) * attempts
    assert [attempt for *_, attempt in events(config)[::2]] == list(range(attempts))
    weights = "last_good" if was_good else "initial"
    assert summary["weights"] == RunFolder(config.folder()).read_model()["weights"] == weights
    assert len(summary["co"]["events"]) == attempts
    assert summary["co"]["events"][-1]["changed"] is None
    printed = capsys.readouterr().err
    assert ("never robust so far" in printed) == (not was_good)
    lost = f"no robust weights were found: the model keeps its initial weights{advice}"
    assert (lost in printed) == (not was_good)


def test_what_a_rollback_changed_is_recorded(settings: BuildSettings, script: Any, capsys: Any) -> None:
    """The first attempt never is good: the second begins anew with growing eps, and collapses once more."""
    script(lambda attempt, step: 0.1 if attempt == 0 else collapse_from(48, attempts=2)(attempt, step))
    config = settings("scripted", guard="rollback", **LONG)
    factors = Recorder(lambda run: (run.state.attempt, run.state.method.threat.eps / run.threat.eps))
    result = train(config, hooks=[Follow(), factors])
    assert steps(config) == [("alarm", 44), ("returned", 0), ("alarm", 52), ("returned", 48)]
    changes = [{"data_order": 1, "eps_warmup": 3.0}, {"data_order": 2}]
    assert [event["changed"] for event in result.summary["co"]["events"]] == changes
    lines = RunFolder(config.folder()).read_log("events")
    assert [line["changed"] for line in lines if line["event"] == "returned"] == changes
    words = "attempt 2 begins; changed: another data order, eps grows from 0 over 3 epochs"
    assert words in capsys.readouterr().err
    assert {factor for attempt, factor in factors.values if attempt == 0} == {1.0}
    grown = [factor for attempt, factor in factors.values if attempt == 1]
    assert grown == pytest.approx([min(1, (step + 1) / 36) for step in range(52)])
    assert result.summary["weights"] == "last"
    metrics = RunFolder(config.folder()).read_log("metrics")
    assert {line["attempt"] for line in [*metrics, *lines]} == {0, 1, 2}
    assert [line["step"] for line in metrics if line["attempt"] == 2] == list(range(52, 73, 4))
    losses = {(line["attempt"], line["step"]): line["loss"] for line in metrics}
    assert losses[1, 52] != losses[2, 52]  # other batches from the same state
    subject_of_run(str(config.folder())).write_card([result], {})
    facts = json.loads((config.folder() / "model_card.json").read_text())["training"]
    assert (facts["guard"], facts["changed by the guard"]) == ("rollback", changes)
    assert row_name(result.summary) == "scripted + rollback"


def test_no_state_is_good_before_the_guard_has_seen_it(settings: BuildSettings, script: Any) -> None:
    script(collapse_from(56, attempts=1))  # an epoch ends at step 60, between two intervals of eleven
    config = settings("scripted", guard="rollback", **LINEAR | {"log_every": 11})
    scripted_run(config)
    assert events(config) == [("alarm", 60, 0), ("returned", 55, 0)]


def test_pgd_is_the_attack_while_the_alarm_lasts(settings: BuildSettings, script: Any) -> None:
    script(lambda attempt, step: COLLAPSED if 40 <= step < 60 else CALM)
    used = Recorder(lambda run: run.method.info.name)
    config = settings("scripted", guard="pgd", **LINEAR)
    # PGD's own PertAlign ends the alarm, after at least twenty batches.
    summary = scripted_run(config, used)
    (alarm, recovered), (event,) = events(config), summary["co"]["events"]
    assert alarm == ("alarm", 44, 0)  # the method changes where the log is written
    assert recovered[0] == "recovered"
    end = math.ceil(recovered[1] / 4) * 4
    assert used.values == ["scripted"] * 44 + ["pgd"] * (end - 44) + ["scripted"] * (72 - end)
    assert event["recovered"] == recovered[1]
    assert event["changed"] == {"pgd_batches": end - 44}


def test_a_stopped_rollback_ends_with_the_same_bytes(settings: BuildSettings, script: Any) -> None:
    script(collapse_from(48, attempts=2))
    options = LINEAR | {"guard": "rollback", "eval_every": 3}
    whole, broken = (settings("scripted", out=name, **options) for name in ("whole", "broken"))
    scripted_run(whole)
    checkpoints = RunFolder(broken.folder()).checkpoints
    # Before the alarm, before it is noticed, after the return.
    for steps, newest in ((30, "step-0-00000030"), (21, "step-0-00000051"), (3, "step-1-00000050")):
        with pytest.raises(Interrupted):
            scripted_run(broken, SignalAfter(steps, signal.SIGTERM))
        assert checkpoints.newest_first()[0].stem == newest
        assert not checkpoints.good.samefile(
            checkpoints.newest_first()[0]
        )  # no state is good for being stopped
    scripted_run(broken)
    assert contents(whole) == contents(broken)


def test_a_damaged_last_good_state_is_one_line(settings: BuildSettings, script: Any) -> None:
    script(collapse_from(48))
    config = settings("scripted", guard="stop", **LINEAR)

    def damage(run: Any, batch: Any) -> None:
        good = run.folder.checkpoints.good
        good.write_bytes(good.read_bytes()[:-1])

    with pytest.raises(RunError, match=r"last_good\.safetensors cannot be read"):
        scripted_run(config, At(51, damage))


# Methods without PertAlign are watched through a few images, cheaply and without disturbing training.

INFOS = [methods.info(name) for name in methods.names()]
WITHOUT = [info.name for info in INFOS if info.adversarial and not info.has_pert_align]


def looks(settings: Settings) -> list[int]:
    lines = RunFolder(settings.folder()).read_log("metrics")
    return [line["step"] for line in lines if line.get(alarms.LOOK) is not None]


@pytest.fixture
def looked(monkeypatch: Any) -> Callable[[Callable[[int, int], float]], None]:
    """Sets what each look sees, by attempt and step."""

    def install(script: Callable[[int, int], float]) -> None:
        def look_regularly(self: Any) -> None:
            state = self._run.state
            if state.step % alarms.EVERY == 0:
                self._run.journal.add(alarms.LOOK, torch.tensor(script(state.attempt, state.step)))

        monkeypatch.setattr(alarms.Alarms, "look_regularly", look_regularly)

    return install


def test_the_methods_that_need_it() -> None:
    assert WITHOUT == ["nuat", "trades", "gat"]


@pytest.mark.parametrize("method", [*WITHOUT, "fgsm", "benign"])
def test_weights_are_the_same_with_and_without_it(method: str, settings: BuildSettings) -> None:
    short = LONG | {"epochs": 1}
    watched, alone = (settings(method, out=guard, guard=guard, **short) for guard in ("warn", "off"))
    for config in (watched, alone):
        train(config, quiet=True)
    one, other = (RunFolder(config.folder()).weights.read_bytes() for config in (watched, alone))
    assert one == other
    assert looks(watched) == ([12] if method in WITHOUT else [])  # the log line after step 10
    assert looks(alone) == []


def test_it_is_pert_align_of_the_watched_images(settings: BuildSettings) -> None:
    seen: list[tuple[float, float]] = []

    class Compare(Hook):
        def after_step(self, run: Any, out: Any) -> None:
            if run.state.step == 10:
                x, y = run.watched(2)  # a quarter of the batch
                measured = metrics.measure(run.state.model, x, y, run.threat, ("pertalign",))
                look = alarms.second_look(run.state.model, x, y, run.threat)
                seen.append((look.item(), measured["pertalign"]))
                assert run.state.model.training

    config = settings("nuat", **LONG | {"epochs": 1, "log_every": 1})
    train(config, hooks=[Compare()], quiet=True)
    (line,) = [row for row in RunFolder(config.folder()).read_log("metrics") if row["step"] == 10]
    assert seen == [(line[alarms.LOOK], line[alarms.LOOK])]


class CountImages(Hook):
    """Counts the images passed forward until the last step."""

    def start(self, run: Any) -> None:
        self.now = self.count = 0
        run.state.model.register_forward_hook(self.add)

    def add(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        self.now += len(inputs[0])

    def after_step(self, run: Any, out: Any) -> None:
        self.count = self.now  # before the test set is evaluated


@pytest.mark.parametrize("batch_size", [8, 64])
def test_its_passes_are_a_small_part_of_a_step(settings: BuildSettings, batch_size: int) -> None:
    """Counted in images passed forward; each pass of NuAT and of a look is followed by a backward pass."""
    options = LONG | {"batch_size": batch_size, "epochs": math.ceil(20 / (96 // batch_size))}
    passed = []
    for guard in ("off", "warn"):
        passed.append(CountImages())
        model = nn.Sequential(nn.Flatten(), nn.Linear(256, 10))
        train(settings("nuat", out=guard, guard=guard, **options), model=model, hooks=passed[-1:], quiet=True)
    assert 0 < passed[1].count / passed[0].count - 1 <= 0.05


@pytest.mark.parametrize(
    ("action", "after", "weights"),
    [
        ("warn", ("recovered", 70), "last"),
        ("stop", ("returned", 48), "last_good"),
        ("pgd", ("recovered", 70), "last"),
    ],
)
def test_actions_follow_a_look_which_stands_for_the_steps_since_the_one_before(
    settings: BuildSettings, looked: Any, action: str, after: tuple[str, int], weights: str
) -> None:
    looked(lambda attempt, step: 0.0 if 50 <= step < 70 else 0.8)
    config = settings("gat", guard=action, **LINEAR)
    summary = train(config, quiet=True).summary
    assert steps(config) == [("alarm", 50), after]
    assert summary["weights"] == weights
    if action == "warn":
        assert summary["co"]["watched_steps"] == 70 - 40
        assert all(
            math.isnan(value) for value in summary["pert_align"].values()
        )  # those are of training steps
    if action == "pgd":
        assert summary["co"]["events"][0]["changed"] == {"pgd_batches": 20}


def test_a_killed_rollback_ends_with_the_same_bytes(settings: BuildSettings, looked: Any) -> None:
    looked(lambda attempt, step: 0.0 if attempt == 0 and step >= 50 else 0.8)
    options = LINEAR | {"guard": "rollback", "log_every": 7, "checkpoint_every": 3}
    whole, broken = (settings("gat", out=name, **options) for name in ("whole", "broken"))
    train(whole, quiet=True)
    assert steps(whole) == [("alarm", 50), ("returned", 49)]
    train_killed_at(broken, [45, 53])
    assert contents(whole) == contents(broken)
