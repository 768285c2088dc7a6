"""What each action does about an alarm, on runs whose PertAlign is scripted."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch

import sora
from sora.errors import RunError
from sora.evaluation.subject import subject_of_run
from sora.experiments.compare import row_name
from sora.runs import RunFolder
from sora.settings import Settings
from sora.training import Interrupted, train
from tests.training.disturbances import At, Killed, Recorder, SignalAfter, kill_at_link
from tests.training.scripted import CALM, COLLAPSED, Follow, collapse_from, scripted_run

BuildSettings = Callable[..., Settings]
LONG = {"epochs": 8, "batch_size": 8, "log_every": 4, "checkpoint_every": 0}  # 96 steps
LONG |= {"eval_every": 0, "attacks": ("clean",), "snapshots": False}


def events(settings: Settings) -> list[tuple[str, int, int]]:
    lines = RunFolder(settings.folder()).read_log("events")
    return [(line["event"], line["step"], line["attempt"]) for line in lines]


def test_warn_reports_and_changes_nothing(settings: BuildSettings, script: Any) -> None:
    script(collapse_from(60))
    silent, warned = (settings("scripted", out=name, guard=name, **LONG) for name in ("off", "warn"))
    scripted_run(silent)
    summary = scripted_run(warned)
    weights = [RunFolder(each.folder()).weights.read_bytes() for each in (silent, warned)]
    assert weights[0] == weights[1]
    assert events(silent) == []
    assert [event for event, *_ in events(warned)] == ["alarm"]
    alarm = {"step": 64, "epoch": 6, "attempt": 0, "action": "warn"}
    assert summary["co"]["events"] == [alarm | dict.fromkeys(("recovered", "returned", "changed"))]
    assert summary["co"]["guard"] == "warn"
    assert summary["weights"] == "last"


def test_an_alarm_is_printed(settings: BuildSettings, script: Any, capsys: Any) -> None:
    script(collapse_from(60))
    scripted_run(settings("scripted", **LONG), quiet=False)
    printed = capsys.readouterr().err
    assert "step 64 (epoch 6): catastrophic overfitting" in printed
    assert "PertAlign average 0.2" in printed


def test_stop_hands_over_the_last_good_weights(settings: BuildSettings, script: Any) -> None:
    script(collapse_from(60))
    config = settings("scripted", guard="stop", **LONG)
    summary = scripted_run(config)
    # The average is last above 0.40 at step 62; states are kept at every fourth step here.
    assert events(config) == [("alarm", 64, 0), ("returned", 60, 0)]
    assert summary["weights"] == "last_good"
    assert RunFolder(config.folder()).read_model()["weights"] == "last_good"
    weights = Recorder(lambda run: {n: t.clone() for n, t in run.state.model.state_dict().items()})
    scripted_run(settings("scripted", out="same", guard="off", **LONG), weights)
    handed_over = sora.load(config.folder()).state_dict()
    assert all(torch.equal(handed_over[name], tensor) for name, tensor in weights.values[59].items())


def test_stop_stops_also_if_nothing_was_good(settings: BuildSettings, script: Any, capsys: Any) -> None:
    script(lambda attempt, step: 0.1 if attempt == 0 else CALM)
    config = settings("scripted", guard="stop", **LONG)
    summary = scripted_run(config, quiet=False)
    assert events(config) == [("alarm", 44, 0), ("returned", 0, 0)]
    assert summary["weights"] == "initial"
    assert RunFolder(config.folder()).read_model()["weights"] == "initial"
    assert summary["co"]["events"][0]["changed"] is None
    printed = capsys.readouterr().err
    assert "never robust so far" in printed
    assert "no robust weights were found" in printed
    assert "try --guard rollback or --eps-warmup" in printed


def test_the_initial_weights_are_handed_over_if_no_rollback_helps(
    settings: BuildSettings, script: Any, capsys: Any
) -> None:
    script(lambda attempt, step: 0.1)
    config = settings("scripted", guard="rollback", **LONG)
    assert scripted_run(config, quiet=False)["weights"] == "initial"
    assert events(config) == [(e, s, k) for k in range(4) for e, s in (("alarm", 44), ("returned", 0))]
    assert "no robust weights were found" in capsys.readouterr().err


def test_what_a_rollback_changed_is_recorded(settings: BuildSettings, script: Any, capsys: Any) -> None:
    script(lambda attempt, step: 0.1 if attempt == 0 else collapse_from(60, attempts=2)(attempt, step))
    config = settings("scripted", guard="rollback", **LONG)
    result = train(config, hooks=[Follow()])
    summary = result.summary
    changes = [{"data_order": 1, "eps_warmup": 4.0}, {"data_order": 2}]
    assert [event["changed"] for event in summary["co"]["events"]] == changes
    lines = RunFolder(config.folder()).read_log("events")
    assert [line["changed"] for line in lines if line["event"] == "returned"] == changes
    assert "attempt 2 begins; changed: another data order, eps grows from 0 over 4 epochs" in (
        capsys.readouterr().err
    )
    logs = [line for name in ("metrics", "events") for line in RunFolder(config.folder()).read_log(name)]
    assert {line["attempt"] for line in logs} == {0, 1, 2}
    subject_of_run(str(config.folder())).write_card([result], {})
    facts = json.loads((config.folder() / "model_card.json").read_text())["training"]
    assert (facts["guard"], facts["changed by the guard"]) == ("rollback", changes)
    assert row_name(summary) == "scripted + rollback"


def test_rollback_continues_from_the_last_good_state_with_other_batches(
    settings: BuildSettings, script: Any
) -> None:
    script(collapse_from(60, attempts=1))
    config = settings("scripted", guard="rollback", **LONG)
    summary = scripted_run(config)
    assert events(config) == [("alarm", 64, 0), ("returned", 60, 0)]
    assert summary["weights"] == "last"
    assert summary["co"]["events"][0]["returned"] == 60
    lines = RunFolder(config.folder()).read_log("metrics")
    assert [line["step"] for line in lines if line["attempt"] == 1] == list(range(64, 97, 4))
    first, second = ([r["loss"] for r in lines if (r["attempt"], r["step"]) == (k, 64)] for k in (0, 1))
    assert first != second


def test_no_state_is_good_before_the_guard_has_seen_it(settings: BuildSettings, script: Any) -> None:
    script(collapse_from(56, attempts=1))  # an epoch ends at step 60, between two intervals of eleven
    config = settings("scripted", guard="rollback", **LONG | {"log_every": 11})
    scripted_run(config)
    assert events(config) == [("alarm", 60, 0), ("returned", 55, 0)]


def test_rollback_gives_up_after_three_and_hands_over_good_weights(
    settings: BuildSettings, script: Any
) -> None:
    script(collapse_from(60))
    config = settings("scripted", guard="rollback", **LONG)
    summary = scripted_run(config)
    assert [event for event, *_ in events(config)] == ["alarm", "returned"] * 4
    assert [attempt for event, _, attempt in events(config) if event == "alarm"] == [0, 1, 2, 3]
    assert summary["weights"] == "last_good"
    assert len(summary["co"]["events"]) == 4


def test_rollback_of_a_run_that_never_was_good_starts_again_with_growing_eps(
    settings: BuildSettings, script: Any
) -> None:
    script(lambda attempt, step: 0.1 if attempt == 0 else CALM)
    factors = Recorder(lambda run: (run.state.attempt, run.state.method.threat.eps / run.threat.eps))
    config = settings("scripted", guard="rollback", **LONG)
    scripted_run(config, factors)
    assert events(config) == [("alarm", 44, 0), ("returned", 0, 0)]
    assert {factor for attempt, factor in factors.values if attempt == 0} == {1.0}
    grown = [factor for attempt, factor in factors.values if attempt == 1]
    assert grown == pytest.approx([min(1, (step + 1) / 48) for step in range(96)])


def test_pgd_is_the_attack_while_the_alarm_lasts(settings: BuildSettings, script: Any) -> None:
    script(lambda attempt, step: COLLAPSED if 40 <= step < 60 else CALM)
    used = Recorder(lambda run: run.method.info.name)
    config = settings("scripted", guard="pgd", **LONG)
    # PGD's own PertAlign would end the alarm: the script goes on through a method that is not asked.
    summary = scripted_run(config, used)
    (first, alarm, _), *rest = events(config)
    assert first == "alarm"
    start = math.ceil(alarm / 4) * 4  # the attack changes where the log is written
    assert summary["co"]["events"][0]["changed"] == {"pgd_batches": used.values.count("pgd")}
    assert set(used.values[:start]) == {"scripted"}
    assert used.values[start] == "pgd"
    if rest:
        recovered = summary["co"]["events"][0]["recovered"]
        end = math.ceil(recovered / 4) * 4
        assert set(used.values[start:end]) == {"pgd"}
        assert used.values[end : end + 1] in ([], ["scripted"])


@pytest.mark.parametrize("kill_after", [30, 63, 66])
def test_a_killed_rollback_ends_with_the_same_bytes(
    settings: BuildSettings, script: Any, kill_after: int
) -> None:
    script(collapse_from(60, attempts=2))
    whole, broken = (settings("scripted", out=name, guard="rollback", **LONG) for name in ("whole", "broken"))
    scripted_run(whole)
    with pytest.raises(Interrupted):
        scripted_run(broken, SignalAfter(kill_after, signal.SIGTERM))
    scripted_run(broken)
    for name in ("model.safetensors", "events.jsonl", "metrics.jsonl"):
        assert (whole.folder() / name).read_bytes() == (broken.folder() / name).read_bytes()


def test_a_kill_before_the_name_of_the_last_good_state_is_made_up_for(
    settings: BuildSettings, script: Any, monkeypatch: Any
) -> None:
    script(collapse_from(60))
    whole, broken = (settings("scripted", out=name, guard="stop", **LONG) for name in ("whole", "broken"))
    scripted_run(whole)
    kill_at_link(monkeypatch, 60)
    with pytest.raises(Killed):
        scripted_run(broken)
    monkeypatch.undo()
    scripted_run(broken)
    assert events(broken) == [("alarm", 64, 0), ("returned", 60, 0)]
    for name in ("model.safetensors", "events.jsonl", "metrics.jsonl"):
        assert (whole.folder() / name).read_bytes() == (broken.folder() / name).read_bytes()


def test_a_damaged_last_good_state_is_one_line(settings: BuildSettings, script: Any) -> None:
    script(collapse_from(60))
    config = settings("scripted", guard="stop", **LONG)

    def damage(run: Any) -> None:
        good = run.folder.checkpoints.good
        good.write_bytes(good.read_bytes()[:-1])

    with pytest.raises(RunError, match=r"last_good\.safetensors cannot be read"):
        scripted_run(config, At(63, damage))


def test_good_states_are_not_kept_for_an_interruption(settings: BuildSettings, script: Any) -> None:
    script(collapse_from(200))
    config = settings("scripted", guard="stop", **LONG)
    with pytest.raises(Interrupted):
        scripted_run(config, SignalAfter(51, signal.SIGTERM))
    checkpoints = RunFolder(config.folder()).checkpoints
    newest = checkpoints.newest_first()[0]
    assert newest.name == "step-0-00000051.safetensors"
    assert not checkpoints.good.samefile(newest)
