"""Series of a run's logs: scaled for one plot, and those of the picture of a training run."""

from pathlib import Path

import pytest

from sora import metrics, probes
from sora.probes.traces import falling_windows, looks, scaled
from sora.runs import RunFolder

from .toys import logged_run


def test_series_of_all_logs_in_which_a_repeated_step_counts_once(tmp_path: Path) -> None:
    result = probes.create("traces").measure(logged_run(tmp_path / "run"))
    series = result["series"]
    assert series["loss"]["steps"] == list(range(1, 41))
    assert series["kl"]["steps"] == [10, 20, 30, 40]
    assert series["kl"]["scaled"] == pytest.approx([1, 1 - 2 / 2, 0, 0])  # logarithms are cut at 1e-12
    assert series["pgd"]["scaled"] == series["pgd"]["values"]
    assert series["held-out pgd10"]["values"] == [0.4, 0.2]
    assert [event["event"] for event in result["events"]] == ["alarm"]
    assert len(result["falls"]) == 1
    run = logged_run(tmp_path / "again")
    with run.log_path("metrics").open("a") as log:
        log.write('{"step": 40, "loss": 9.0, "pert_align": 0.5}\n')
    series = probes.create("traces").measure(run)["series"]
    assert series["loss"]["steps"] == list(range(1, 41))
    assert series["loss"]["values"][-1] == 9.0


def test_falls_are_reported_once_and_series_scaled() -> None:
    assert len(falling_windows([1.0] * 300 + [0.0] * 300)) == 1
    assert falling_windows([0.7] * 600) == []
    assert falling_windows([0.0] * 300 + [1.0] * 300) == []  # this is a rise
    assert falling_windows([]) == []
    assert scaled([0.2, 0.5], "as is") == [0.2, 0.5]
    assert scaled([2.0, 4.0, 3.0], "scaled") == [0, 1, 0.5]
    assert scaled([1e-4, 1e-2, 1.0], "log, scaled") == pytest.approx([0, 0.5, 1])
    assert scaled([3.0, 3.0], "scaled") == [0.5, 0.5]


def test_every_metric_with_a_colour_is_drawn_as_registered() -> None:
    for name in metrics.names():
        entry, look = metrics.info(name), looks().get(name)
        expected = (entry.colour, entry.line, entry.scale) if entry.colour else None
        assert (look and look[:3]) == expected


def test_series_and_sentence_of_training_also_before_anything_is_logged(tmp_path: Path) -> None:
    probe = probes.create("training")
    result = probe.measure(logged_run(tmp_path / "run"))
    assert result["alarms"] == [22]
    assert result["pert_align"]["steps"] == list(range(1, 41))
    assert result["accuracy"]["pgd10"] == {"epochs": [1, 2], "values": [0.4, 0.2]}
    assert probe.sentence(result) == (
        "PertAlign 0.10 at step 40; alarms at step 22; "
        "accuracy on held-out images clean 80.0 %, fgsm 50.0 %, pgd10 20.0 % (n = 100)"
    )
    result = probe.measure(RunFolder(tmp_path))
    assert probe.sentence(result) == "PertAlign not logged; no alarms"
    probe.picture({"empty": result}, tmp_path / "empty.png")
    assert (tmp_path / "empty.png").exists()
