"""Series of a run's logs, and those of the picture of a training run."""

from pathlib import Path

from sora import methods, metrics, probes
from sora.figures import BLUE, GREY, RED, colour_of, looks
from sora.probes.traces import falling_windows, rows
from sora.runs import RunFolder

from .toys import logged_run


def test_series_of_all_logs_in_which_a_repeated_step_counts_once(tmp_path: Path) -> None:
    result = probes.create("traces").measure(logged_run(tmp_path / "run"))
    series = result["series"]
    assert series["loss"]["steps"] == list(range(1, 41))
    assert series["kl"]["steps"] == [10, 20, 30, 40]
    assert series["held-out pgd10"]["values"] == [0.4, 0.2]
    assert [event["event"] for event in result["events"]] == ["alarm"]
    assert len(result["falls"]) == 1
    run = logged_run(tmp_path / "again")
    with run.log_path("metrics").open("a") as log:
        log.write('{"step": 40, "loss": 9.0, "pert_align": 0.5}\n')
    series = probes.create("traces").measure(run)["series"]
    assert series["loss"]["steps"] == list(range(1, 41))
    assert series["loss"]["values"][-1] == 9.0


def test_falls_are_reported_once() -> None:
    assert len(falling_windows([1.0] * 300 + [0.0] * 300)) == 1
    assert falling_windows([0.7] * 600) == []
    assert falling_windows([0.0] * 300 + [1.0] * 300) == []  # this is a rise
    assert falling_windows([]) == []


def test_every_metric_is_drawn_over_its_axis_and_a_method_has_one_colour() -> None:
    assert {name: rows()[name][1].scale for name in ("kl", "elle", "pgd")} == {
        "kl": "log",
        "elle": "log",
        "pgd": "linear",
    }
    assert set(metrics.names()) <= set(rows())
    assert [colour_of(name) for name in ("sora", "fgsm", "")] == [BLUE, RED, GREY]
    assert BLUE not in {colour_of(name) for name in methods.names() if name != "sora"}
    first, second, other = looks({"sora": "sora", "sora-2": "sora", "n-fgsm": "n-fgsm"}).values()
    assert first.colour == second.colour != other.colour
    assert first[1:] != second[1:]


def test_series_and_sentence_of_training_also_before_anything_is_logged(tmp_path: Path) -> None:
    probe = probes.create("training")
    result = probe.measure(logged_run(tmp_path / "run"))
    assert result["alarms"] == [22]
    assert result["pert_align"]["steps"] == list(range(1, 41))
    assert result["accuracy"]["pgd10"] == {"steps": [20, 40], "values": [0.4, 0.2]}
    assert probe.sentence(result) == (
        "PertAlign 0.10 at step 40; alarms at step 22; "
        "accuracy on held-out images clean 80.0 %, fgsm 50.0 %, pgd10 20.0 % (n = 100)"
    )
    empty = RunFolder(tmp_path / "empty")
    empty.path.mkdir()
    empty.write_config("threat: {method: fgsm}")
    result = probe.measure(empty)
    assert probe.sentence(result) == "PertAlign not logged; no alarms"
    probe.picture({"empty": result}, tmp_path / "empty.png")
    assert (tmp_path / "empty.png").exists()
