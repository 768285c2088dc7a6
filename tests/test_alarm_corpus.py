"""benchmarks/alarm: the classes of runs, the files of the corpus, the rules and how they are judged."""

import math
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks" / "alarm"))

import corpus
import judging
import rules
import truth

import runs

EVERY = 5


def trace(pert_align: list[float], fgsm: list[float], pgd: list[float], method: str = "fgsm") -> Any:
    """A run with one PertAlign per step and accuracies every five steps."""
    found = corpus.Trace("digits", method, "eps20", 0)
    for step, value in enumerate(pert_align, start=1):
        measured = step % EVERY == 0 and step // EVERY <= len(pgd)
        row = {"step": step, "pert_align": value}
        if measured:
            row |= {"fgsm": fgsm[step // EVERY - 1], "pgd": pgd[step // EVERY - 1]}
        for name in runs.COLUMNS:
            found.columns[name].append(row.get(name, math.nan))
    return found


FALLING = [0.1, 0.2, 0.4, 0.4, 0.4, 0.3, 0.1, 0.05, 0.0, 0.0]


class TestTruth:
    def test_a_fall_to_half_while_fgsm_stays_is_a_collapse(self) -> None:
        found = truth.truth_of(trace([0.5] * 50, [0.5] * 10, FALLING))
        assert (found.kind, found.fall) == ("collapsed", 35)  # the medians are ... 0.4, 0.3, 0.1
        assert found.overfitted == (35, 40, 45, 50)

    def test_a_fall_of_both_accuracies_and_one_low_measurement_are_not(self) -> None:
        assert truth.truth_of(trace([0.5] * 50, FALLING, FALLING)).kind == "healthy"
        pgd = [0.4] * 5 + [0.0] + [0.4] * 4
        assert truth.truth_of(trace([0.5] * 50, [0.5] * 10, pgd)).kind == "healthy"

    def test_overfitted_for_a_while_before_it_is_robust(self) -> None:
        fgsm, pgd = [0.9] * 10, [0.1] * 5 + [0.5] * 5
        found = truth.truth_of(trace([0.5] * 50, fgsm, pgd))
        assert found == truth.Truth("healthy", None, (5, 10, 15, 20, 25))

    @pytest.mark.parametrize(("fgsm", "kind"), [(0.9, "overfitted"), (0.1, "never robust")])
    def test_what_was_never_robust_cannot_collapse(self, fgsm: float, kind: str) -> None:
        pgd = [value / 4 for value in FALLING]
        assert truth.truth_of(trace([0.5] * 50, [fgsm] * 10, pgd)).kind == kind

    def test_measurements_far_apart_are_not_smoothed(self) -> None:
        assert truth.smooth([10, 20, 50], [0.1, 0.3, 0.9]) == pytest.approx([0.2, 0.2, 0.9])


ALONE = partial(rules.Current, 1, False)
RULES = (ALONE, rules.Fixed, rules.Previous, rules.Relative, rules.Cusum, rules.PageHinkley)


class TestRules:
    @pytest.mark.parametrize("rule", RULES)
    def test_a_collapse_raises_an_alarm_and_a_steady_run_none(self, rule: Any) -> None:
        steady, falling = rule(), rule()
        assert not any(steady.update(value) for value in [0.75, 0.65] * 150)
        values = [falling.update(value) for value in [0.7] * 100 + [0.05] * 40]
        assert not any(values[:100])
        assert any(values[100:])

    @pytest.mark.parametrize("rule", RULES)
    def test_nan_is_ignored(self, rule: Any) -> None:
        one, other = rule(), rule()
        values = [0.7] * 80 + [0.0] * 40
        with_nan = [[other.update(math.nan), other.update(value)][1] for value in values]
        assert [one.update(value) for value in values] == with_nan

    @pytest.mark.parametrize("rule", [rules.Confirmed, rules.Current])
    def test_a_look_confirms_or_not(self, rule: Any) -> None:
        values = [0.7] * 60 + [0.2] * 30
        low, high, missing = rule(), rule(), rule()
        assert any(low.update(value, 0.2, 0.1) for value in values)
        assert not any(high.update(value, 0.8, 0.1) for value in values)
        assert not any(missing.update(value) for value in values)

    def test_the_previous_rule_is_the_guard_of_that_version(self) -> None:
        rule, values = rules.Previous(), [0.25] * 150
        assert [rule.update(value) for value in values].index(True) == 100
        recovered = [rule.update(value) for value in [0.9] * 30]
        assert not recovered[-1]

    def test_the_window_needs_a_drop_of_half(self) -> None:
        assert not any(map(rules.Window(width=40).update, [0.8] * 60 + [0.4] * 60))
        assert any(map(rules.Window(width=40).update, [0.8] * 60 + [0.2] * 60))

    def test_the_logistic_rule_weighs_level_and_slope(self) -> None:
        rule = rules.Logistic(intercept=0.0, of_level=-10.0, of_slope=-10.0, silent=0)
        assert not rule.update(0.7)
        assert rules.Logistic(intercept=0.0, of_level=-10.0, silent=0).update(-0.2)


class Alarms:
    """An alarm at the given updates."""

    def __init__(self, *updates: int) -> None:
        self.updates, self.count = updates, 0

    def update(self, pert_align: float, look: float, ratio: float) -> bool:
        self.count += 1
        return self.count in self.updates


class TestStudy:
    run = trace([0.5] * 100, [0.5] * 20, [0.4] * 10 + [0.0] * 10)  # falls at step 55

    @pytest.mark.parametrize(
        ("updates", "detected", "lead"),
        [((40, 41), True, 15), ((60,), True, -5), ((90,), False, None), ((), False, None)],
    )
    def test_an_alarm_around_the_fall_detects_it(self, updates: Any, detected: bool, lead: Any) -> None:
        fallen = truth.truth_of(self.run)
        assert fallen.fall == 55
        outcome = judging.judge(Alarms(*updates), self.run, fallen, self.run["pert_align"])
        assert (outcome.detected, outcome.lead) == (detected, lead)

    def test_an_alarm_in_a_phase_of_overfitting_is_not_false(self) -> None:
        recovering = trace([0.5] * 100, [0.9] * 20, [0.1] * 10 + [0.5] * 10)
        found = truth.truth_of(recovering)
        values = recovering["pert_align"]
        assert judging.judge(Alarms(45), recovering, found, values).false == 0
        assert judging.judge(Alarms(45, 80), recovering, found, values).false == 1

    def test_alarms_in_healthy_runs_are_counted(self) -> None:
        healthy = trace([0.5] * 100, [0.5] * 20, [0.4] * 20)
        pairs = [(each, truth.truth_of(each)) for each in (healthy, healthy, self.run)]
        result = judging.score(lambda: Alarms(50, 70), pairs)
        assert (result.falsely_alarmed, result.false, result.healthy) == (2, 4, 2)
        assert (result.detected, result.collapsed, result.leads) == (1, 1, (5,))

    def test_a_run_overfitted_from_the_start_is_caught_while_it_is(self) -> None:
        overfitted = trace([0.5] * 100, [0.9] * 20, [0.05] * 20)
        result = judging.score(lambda: Alarms(50), [(overfitted, truth.truth_of(overfitted))])
        assert (result.caught, result.overfitted, result.false, result.collapsed) == (1, 1, 0, 0)

    def test_looks_are_taken_at_their_cadence(self) -> None:
        run = trace([0.5] * 20, [], [])
        run.columns["look"] = [step / 10 if step % 5 == 0 else math.nan for step in range(1, 21)]
        looks = judging.looks(run, "look", 10)
        assert [(k, value) for k, value in enumerate(looks, 1) if value == value] == [(10, 1.0), (20, 2.0)]

    def test_each_method_is_in_another_half_of_each_data_set(self) -> None:
        for method in runs.WITH_PERT_ALIGN:
            traces = [corpus.Trace(name, method, "", 0) for name in ("digits", "cifar10")]
            assert sorted(map(judging.in_choice_half, traces)) == [False, True]


def test_the_corpus_is_read_as_it_was_written(tmp_path: Path) -> None:
    spec = next(runs.specs())
    rows = [{"step": 1, "pert_align": 0.12345, "loss": 2.0}, {"step": 2, "pert_align": math.nan, "pgd": 0.5}]
    runs.write(tmp_path / f"{spec.name}.csv.gz", (spec.method, spec.setting, spec.seed), rows)
    corpus.write(corpus.rows_of_work(tmp_path), tmp_path / "digits.csv.gz")
    (found,) = corpus.read("digits", tmp_path)
    assert (found.method, found.setting, found.seed) == (spec.method, spec.setting, spec.seed)
    assert found["step"] == [1, 2]
    assert found["pert_align"][0] == 0.123
    assert math.isnan(found["pert_align"][1])
    assert found.measured("step", "pgd") == [(2, 0.5)]
    names = [spec.name for spec in runs.specs()]
    assert len(names) == len(set(names)) > 300
