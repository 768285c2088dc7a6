"""What runs cost: the passes of a step with a run's own options, and estimates of the time of a grid."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from sora import methods
from sora.attacks import create
from sora.experiments.cost import (
    Estimate,
    Passes,
    attack_passes,
    passes_of,
    passes_of_run,
    passes_while_training,
)
from sora.experiments.grid import default_jobs
from sora.runs import RunFolder
from sora.settings import Settings
from tests.probes.toys import write_run


@pytest.mark.parametrize(
    ("method", "options", "expected"),
    [
        ("pgd", {}, Passes("11", "10 in + 1")),
        ("pgd-2", {}, Passes("3", "2 in + 1")),
        ("pgd-10", {"pgd.steps": 3}, Passes("4", "3 in + 1")),
        ("trades", {"trades.steps": 3}, Passes("-", "-")),
        ("free", {"free.replays": 4}, Passes("-", "-")),
        ("n-fgsm", {"n-fgsm.k": 1.5}, Passes("2", "1 in + 1")),
        ("sora", {"sora.sample": False}, Passes("2", "1 in + 1 (to the input)")),
        ("fgsm-law", {"fgsm-law.reference": "start"}, Passes("-", "-")),
    ],
)
def test_passes_follow_the_options(method: str, options: dict[str, Any], expected: Passes) -> None:
    assert passes_of(Settings(method=method, set=options)) == expected


@pytest.mark.parametrize("method", [name for name in methods.names() if methods.info(name).family != "pgd"])
def test_without_options_they_are_the_registrys(method: str) -> None:
    entry = methods.info(method)
    assert passes_of(Settings(method=method)) == (entry.forwards, entry.backwards)


def test_options_that_change_the_passes_exist() -> None:
    for entry in map(methods.info, methods.names()):
        assert set(entry.pass_options) <= {field.name for field in fields(entry.cls.hyper_class)}


def test_they_are_unknown_without_settings_or_if_pgd_replaced_the_method_at_times(tmp_path: Path) -> None:
    assert passes_of_run(RunFolder(tmp_path), {}) == Passes("-", "-")
    run = write_run(tmp_path / "a", "fgsm")
    summary = run.read_summary()
    assert passes_of_run(run, summary) == Passes("2", "1 in + 1")
    event = {"step": 5, "epoch": 1, "changed": {"pgd_batches": 20}}
    replaced = summary | {"co": {**summary["co"], "events": [event]}}
    assert passes_of_run(run, summary, replaced) == Passes("-", "-")


def test_runs_that_find_a_gpu_are_computed_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sora._devices.accelerator", lambda: "mps")
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert [default_jobs(8, device) for device in ("auto", "cuda:1", "mps", "cpu")] == [1, 1, 1, 4]


def test_estimates_count_the_passes_of_all_evaluations_and_the_longest_run() -> None:
    single = attack_passes(create("apgd-ce"), 10)
    assert attack_passes(create("aa"), 10) > 5 * single
    assert attack_passes(create("pgd10"), 10) >= 10
    common = {"epochs": 10, "attacks": ("clean", "pgd10")}
    once = sum(attack_passes(create(name), 10) for name in ("clean", "pgd10"))
    assert passes_while_training(Settings(**common), 50_000, 10) == 10 * 1000 * once
    assert passes_while_training(Settings(**common, eval_every=3, holdout=200), 50_000, 10) == 3 * 200 * once
    assert passes_while_training(Settings(**common, eval_every=0), 50_000, 10) == 0
    chosen = Settings(**common, keep="best-robust", ema=0.9995)
    assert passes_while_training(chosen, 5_000, 10) == 2 * 10 * 500 * once
    found = Estimate(jobs=4, threads=1, train_hours={"a": 3.0, "b": 1.0}, attack_hours={"a": 0.5, "b": 0.5})
    assert found.wall_hours == 3.5
    assert replace(found, jobs=1).wall_hours == 5.0
    assert Estimate(jobs=2, threads=1).wall_hours == 0.0
