"""The passes of a step with a run's own options."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from sora import methods
from sora.experiments.cost import Passes, passes_of, passes_of_run
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
    assert passes_of_run(run, summary | {"co": {**summary["co"], "events": [event]}}) == Passes("-", "-")
