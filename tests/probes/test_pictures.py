"""What a reader sees: complete legends, labelled axes, round ticks, the same images side by side."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from sora import probes
from sora.attacks import fgsm
from sora.figures import on_paper
from sora.probes import ProbedModel
from sora.runs import RunFolder

from .toys import THREAT, images, logged_run, smooth

NOWHERE = Path("picture.png")


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that probes would have written."""
    drawn: list[Any] = []
    monkeypatch.setattr(on_paper, "save", lambda figure, file: drawn.append(on_paper.draw(figure)))
    return drawn


def legend_of(figure: Any) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_traces_have_labels_and_one_legend_for_everything(figures: list[Any], tmp_path: Path) -> None:
    probe = probes.create("traces")
    first = probe.measure(logged_run(tmp_path / "a"))
    more = {"elle": {"steps": [1, 2], "values": [0.1, 0.2], "scaled": [0.0, 1.0]}}
    probe.picture({"a": first, "b": {**first, "series": first["series"] | more}}, NOWHERE)
    (figure,) = figures
    for panel in figure.axes:
        assert panel.get_xlabel() == "step"
        assert "scaled" in panel.get_ylabel()
        assert panel.yaxis.label.get_fontsize() >= 10
        assert set(panel.get_legend_handles_labels()[1]) <= set(legend_of(figure))
    assert {"pert_align", "alarm", "elle (log, scaled)"} <= set(legend_of(figure))


@pytest.mark.parametrize("runs", [1, 2])
def test_the_legend_of_traces_is_inside_the_picture(figures: list[Any], tmp_path: Path, runs: int) -> None:
    probe = probes.create("traces")
    result = probe.measure(logged_run(tmp_path / "a"))
    long = {
        name: {"steps": [1, 2], "values": [0, 1], "scaled": [0, 1]} for name in ("elle", "kl", "aae_share")
    }
    result = {**result, "events": [], "series": result["series"] | long}
    probe.picture({f"run {number}": result for number in range(runs)}, NOWHERE)
    (figure,) = figures
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert figure.bbox.x0 <= legend.get_window_extent().x0
    assert legend.get_window_extent().x1 <= figure.bbox.x1


def test_an_alarm_has_an_enlarged_view_also_in_a_short_run(figures: list[Any], tmp_path: Path) -> None:
    probe = probes.create("traces")
    short = probe.measure(logged_run(tmp_path / "a"))
    long = {**short, "series": {"pert_align": {k: list(range(1000)) for k in ("steps", "values", "scaled")}}}
    probe.picture({"short": short, "long": long, "calm": {**short, "events": []}}, NOWHERE)
    panels = {panel.get_title(): panel for panel in figures[0].axes if panel.get_title()}
    around = [f"{name}, around the alarm at step 22" for name in ("short", "long")]
    assert list(panels) == ["short", around[0], "long", around[1], "calm"]
    for title, steps in zip(around, (40, 1000), strict=True):
        low, high = panels[title].get_xlim()
        assert low < 22 < high
        assert high - low <= steps / 3


def test_boundary_shows_the_same_images_of_both_runs_and_a_key(figures: list[Any]) -> None:
    x, y = images(30)
    probe = probes.create("boundary", panels=2, points=5)
    results = {
        name: probe.measure(ProbedModel(smooth(seed), (x, y), THREAT)) for name, seed in (("a", 0), ("b", 3))
    }
    first = [[image["image"] for image in result["images"]] for result in results.values()]
    assert first[0][:2] != first[1][:2]  # the models make other mistakes
    probe.picture(results, NOWHERE)
    titles = [panel.get_title() for panel in figures[0].axes]
    rows = [[title.partition(": ")[2] for title in titles if title.startswith(name)] for name in ("a:", "b:")]
    assert rows[0] == rows[1]
    assert {"predicted: class 0", "predicted: class 1", "PGD-10"} <= set(legend_of(figures[0]))


def test_boundary_has_strong_colours_whole_ticks_and_no_marker_that_hides_another(figures: list[Any]) -> None:
    probe = probes.create("boundary", panels=1, points=5)
    result = probe.measure(ProbedModel(smooth(), images(30), THREAT))
    (image, *_) = result["images"]
    grid = [list(range(10)) for _ in result["axis"]]  # ten classes, as neighbours
    probe.picture({"a": {**result, "images": [{**image, "classes": [row[:5] for row in grid]}]}}, NOWHERE)
    (panel,) = figures[0].axes
    assert panel.get_xticks().tolist() == panel.get_yticks().tolist() == [-2, -1, 0, 1, 2]
    pixels = panel.images[0].get_array()[0]
    differences = [abs(a - b).max() for n, a in enumerate(pixels) for b in pixels[:n]]
    assert min(differences) > 0.2
    # Entries of the legend are lines without a place.
    shown = [line for line in panel.lines if len(line.get_xdata()) and math.isfinite(line.get_xdata()[0])]
    markers = [line for line in shown if line.get_marker() != "+"]
    assert {line.get_markerfacecolor() for line in markers} == {"none"}
    assert len({line.get_marker() for line in markers}) == len(markers) == 4


def test_boundary_counts_over_all_correct_images() -> None:
    model, (x, y) = smooth(), images(30)
    probe = probes.create("boundary", panels=2, points=3)
    result = probe.measure(ProbedModel(model, (x, y), THREAT))
    right = model(x).argmax(1) == y
    assert (result["n"], result["correct"]) == (30, int(right.sum()))
    changed = model(fgsm(model, x, y, THREAT)).argmax(1) != y
    assert result["fooled"]["FGSM"] == int((right & changed).sum())
    sentence = probe.sentence(result)
    assert f"{result['correct']} of 30 images are classified correctly" in sentence
    assert "the picture shows the first 2" in sentence


def test_landscapes_have_round_ticks_and_say_that_scales_differ(figures: list[Any]) -> None:
    probe = probes.create("landscape", points=5)
    result = probe.measure(ProbedModel(smooth(), images(), THREAT))
    larger = {**result, "loss": [[7.3 * value for value in row] for row in result["loss"]]}
    probe.picture({"a": result, "b": larger}, NOWHERE)
    bars = [panel for panel in figures[0].axes if "own scale" in panel.get_ylabel()]
    assert all(bar.get_yticks()[-1] < 5 * max(result["way"]) for bar in bars)  # the bump is visible
    assert len(bars) == 2
    for bar in bars:
        step = bar.get_yticks()[1] - bar.get_yticks()[0]
        assert round(step / 10 ** math.floor(math.log10(step) + 1e-9), 6) in (1, 2, 5)


def test_landscapes_show_the_loss_on_the_way_to_the_fgsm_example(figures: list[Any]) -> None:
    probe = probes.create("landscape", points=5)
    result = probe.measure(ProbedModel(smooth(), images(), THREAT))
    probe.picture({"a": {**result, "bump": 0.25}}, NOWHERE)
    (panel,) = [panel for panel in figures[0].axes if "bump of 0.25" in panel.get_title()]
    assert panel.lines[0].get_ydata().tolist() == result["way"]
    assert "0.250 higher" in probe.sentence({**result, "bump": 0.25})
    assert "highest at the end" in probe.sentence({**result, "bump": 0.0})


@pytest.mark.parametrize(("n", "shaded"), [(20, False), (200, True)])
def test_eps_curve_shades_no_rise_of_a_few_images(figures: list[Any], n: int, shaded: bool) -> None:
    probe = probes.create("eps-curve")
    result = probe.measure(ProbedModel(smooth(), images(4), THREAT))
    probe.picture({"a": {**result, "n": n, "index": 0.05, "rise": {"from": 0.5, "to": 1.0}}}, NOWHERE)
    (panel,) = figures[0].axes
    labels = [text.get_text() for text in panel.get_legend().get_texts()]
    assert ("largest rise" in labels) == bool(panel.patches) == shaded
    assert f"({n // 20} images)" in panel.get_title()


def test_curvature_panels_share_axes_and_explain_their_lines(figures: list[Any]) -> None:
    probe = probes.create("curvature")
    results = {
        name: probe.measure(ProbedModel(smooth(seed), images(), THREAT))
        for name, seed in (("a", 0), ("b", 3))
    }
    probe.picture(results, NOWHERE)
    first, second = figures[0].axes[:4], figures[0].axes[4:]
    for above, below in zip(first, second, strict=True):
        assert above.get_ylim() == below.get_ylim()
        assert set(above.get_legend_handles_labels()[1]) == {
            text.get_text() for text in below.get_legend().get_texts()
        }
        assert above.get_xlabel()
        assert above.get_ylabel()


def test_training_tells_methods_from_attacks_and_counts_whole_epochs(
    figures: list[Any], tmp_path: Path
) -> None:
    run: RunFolder = logged_run(tmp_path / "a")
    probe = probes.create("training")
    probe.picture({"fgsm": probe.measure(run)}, NOWHERE)
    aligned, accuracy = figures[0].axes[:2]
    assert aligned.get_legend_handles_labels()[1] == ["fgsm, alarm at step 22"]
    assert accuracy.get_title() == "trained with fgsm"
    assert any(label.startswith("attacked by ") for label in accuracy.get_legend_handles_labels()[1])
    assert all(float(tick).is_integer() for tick in accuracy.get_xticks())


def test_training_gives_a_run_one_colour_and_an_attack_one_style(figures: list[Any], tmp_path: Path) -> None:
    probe = probes.create("training")
    result = probe.measure(logged_run(tmp_path / "a"))
    probe.picture({"fgsm": result, "sora": result}, NOWHERE)
    figure = figures[0]
    aligned, *accuracies = figure.axes
    colours = {str(line.get_label()).partition(",")[0]: line.get_color() for line in aligned.lines}
    for panel in accuracies:
        assert {line.get_color() for line in panel.lines} == {
            colours[panel.get_title().removeprefix("trained with ")]
        }
    assert len(colours) == 3  # two runs and what has no label: the lines at their alarms
    styles = [[line.get_linestyle() for line in panel.lines] for panel in accuracies]
    assert styles[0] == styles[1]
    assert len(set(styles[0])) == 3
    figure.draw_without_rendering()
    left = min(panel.yaxis.label.get_window_extent().x0 for panel in figure.axes if panel.get_ylabel())
    assert left > 0.005 * figure.bbox.width


@pytest.mark.parametrize("name", ["samples", "fallen"])
def test_images_have_the_names_of_their_classes(name: str) -> None:
    probe = probes.create(name)
    numbers = probe.measure(ProbedModel(smooth(), images(), THREAT))
    named = probe.measure(ProbedModel(smooth(), images(), THREAT, classes=[f"kind {k}" for k in range(10)]))
    for result, word in ((numbers, "class "), (named, "kind ")):
        titles = [panel.title for panel in probe.figure({"run": result}).panels if panel and panel.title]
        assert titles
        assert all(text.startswith((word, f"→ {word}")) for text in titles)


def test_fallen_images_are_named_by_their_position_in_the_set_they_were_chosen_from() -> None:
    model, (x, _) = smooth(), images(40)
    pair = x, model(x).argmax(1)  # all are correct
    own = probes.create("fallen").measure(ProbedModel(model, pair, THREAT))["fallen"]
    assert own
    there = [3 * number + 1 for number in range(40)]
    chosen = probes.create("fallen").measure(ProbedModel(model, pair, THREAT, positions=there))["fallen"]
    assert [entry["image"] for entry in chosen] == [3 * entry["image"] + 1 for entry in own]
    assert [entry["label"] for entry in own] == [int(pair[1][entry["image"]]) for entry in own]
