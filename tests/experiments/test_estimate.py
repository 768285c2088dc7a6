"""Estimates of the time that a grid takes."""

from dataclasses import replace

import pytest
import torch

from sora.attacks import create
from sora.experiments.cost import Estimate, attack_passes, passes_while_training
from sora.experiments.grid import default_jobs
from sora.settings import Settings


def test_runs_that_find_a_gpu_are_computed_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert [default_jobs(8, device) for device in ("auto", "cuda:1", "cpu")] == [1, 1, 4]


def test_autoattack_counts_the_passes_of_all_its_parts() -> None:
    single = attack_passes(create("apgd-ce"), 10)
    assert attack_passes(create("aa"), 10) > 5 * single
    assert attack_passes(create("pgd10"), 10) >= 10


def test_evaluations_between_epochs_count_both_kinds_of_weights_where_they_compete() -> None:
    common = {"epochs": 10, "attacks": ("clean", "pgd10")}
    once = sum(attack_passes(create(name), 10) for name in ("clean", "pgd10"))
    assert passes_while_training(Settings(**common), 50_000, 10) == 10 * 1000 * once
    assert passes_while_training(Settings(**common, eval_every=3, holdout=200), 50_000, 10) == 3 * 200 * once
    assert passes_while_training(Settings(**common, eval_every=0), 50_000, 10) == 0
    chosen = Settings(**common, keep="best-robust", ema=0.9995)
    assert passes_while_training(chosen, 5_000, 10) == 2 * 10 * 500 * once


def test_more_jobs_than_runs_do_not_shorten_the_longest_run() -> None:
    found = Estimate(jobs=4, threads=1, train_hours={"a": 3.0, "b": 1.0}, attack_hours={"a": 0.5, "b": 0.5})
    assert found.wall_hours == 3.5
    assert replace(found, jobs=1).wall_hours == 5.0
    assert Estimate(jobs=2, threads=1).wall_hours == 0.0
