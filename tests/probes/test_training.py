"""The logs behind the picture of a training run."""

from __future__ import annotations

from pathlib import Path

from sora import probes
from sora.runs import RunFolder

from .toys import logged_run


def test_series_and_sentence(tmp_path: Path) -> None:
    probe = probes.create("training")
    result = probe.measure(logged_run(tmp_path / "run"))
    assert result["alarms"] == [22]
    assert result["pert_align"]["steps"] == list(range(1, 41))
    assert result["accuracy"]["pgd10"] == {"epochs": [1, 2], "values": [0.4, 0.2]}
    assert probe.sentence(result) == (
        "PertAlign 0.10 at step 40; alarms at step 22; "
        "accuracy on held-out images clean 80.0 %, fgsm 50.0 %, pgd10 20.0 % (n = 100)"
    )


def test_a_run_that_has_logged_nothing_yet(tmp_path: Path) -> None:
    probe = probes.create("training")
    result = probe.measure(RunFolder(tmp_path))
    assert probe.sentence(result) == "PertAlign not logged; no alarms"
    probe.picture({"empty": result}, tmp_path / "empty.png")
    assert (tmp_path / "empty.png").exists()
