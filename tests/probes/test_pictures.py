"""What a reader sees: complete legends, labelled axes, round ticks, the same images side by side."""

import math
from pathlib import Path
from typing import Any

import pytest

from sora.attacks import fgsm
from sora.figures import BLUE, RED, on_paper
from sora.probes import ProbedModel, Result, create

from .toys import THREAT, images, logged_run, measure, smooth


def drawn(name: str, results: dict[str, Result], **options: Any) -> Any:
    return on_paper.draw(create(name, **options).figure(results))


def legend_of(figure: Any) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


@pytest.fixture
def logged(tmp_path: Path) -> dict[str, Result]:
    """What is read from the logs of a run, by probe."""
    run = logged_run(tmp_path / "a")
    return {name: create(name).measure(run) for name in ("traces", "training")}


def test_traces_have_a_row_per_metric_and_one_legend_inside_the_picture(logged: dict[str, Result]) -> None:
    first = logged["traces"]
    more = {"elle": {"steps": [1, 2], "values": [0.1, 0.2]}}
    figure = drawn("traces", {"a": first, "b": {**first, "series": first["series"] | more}})
    rows = [axes.get_ylabel() for axes in figure.axes[::2]]
    assert rows == [axes.get_ylabel() for axes in figure.axes[1::2]]
    assert {"PertAlign", "elle", "kl", "loss", "PGD-10\nheld-out"} <= set(rows)
    assert "step size" not in rows  # it is constant
    assert [axes.get_xlabel() for axes in figure.axes] == [""] * (2 * len(rows) - 2) + ["step"] * 2
    assert figure.axes[2 * rows.index("elle")].get_yscale() == "log"
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert legend_of(figure) == ["a", "alarm of a", "b", "alarm of b"]
    assert figure.bbox.x0 <= legend.get_window_extent().x0
    assert legend.get_window_extent().x1 <= figure.bbox.x1


@pytest.mark.parametrize("steps", [40, 1000])
def test_an_alarm_has_an_enlarged_view_also_in_a_short_run(logged: dict[str, Result], steps: int) -> None:
    series = {"pert_align": {key: list(range(1, steps + 1)) for key in ("steps", "values")}}
    whole, around = drawn("traces", {"a": {**logged["traces"], "series": series}}).axes
    assert whole.get_xlim() == (0, steps)
    low, high = around.get_xlim()
    assert low < 22 < high
    assert high - low <= steps / 3


@pytest.mark.parametrize("name", ["training", "traces"])
def test_no_legend_covers_data(logged: dict[str, Result], name: str) -> None:
    figure = drawn(name, {"fgsm": logged[name]})
    figure.draw_without_rendering()
    boxes = [legend.get_window_extent() for legend in figure.legends]
    boxes += [axes.get_legend().get_window_extent() for axes in figure.axes if axes.get_legend()]
    assert boxes
    assert not any(box.overlaps(axes.bbox) for box in boxes for axes in figure.axes)


def test_boundary_shows_the_same_images_of_both_runs_and_a_key() -> None:
    results = {
        name: measure("boundary", smooth(seed), images(30), points=5) for name, seed in (("a", 0), ("b", 3))
    }
    first = [[image["image"] for image in result["images"]] for result in results.values()]
    assert first[0][:2] != first[1][:2]  # the models make other mistakes
    figure = drawn("boundary", results, panels=2)
    titles = [panel.get_title() for panel in figure.axes]
    rows = [
        [title.splitlines()[0][2:] for title in titles if title.startswith(name)] for name in ("a:", "b:")
    ]
    assert rows[0] == rows[1]
    assert {"predicted: class 0", "predicted: class 1", "PGD-10"} <= set(legend_of(figure))


def test_boundary_has_strong_colours_whole_ticks_and_no_marker_that_hides_another() -> None:
    result = measure("boundary", smooth(), images(30), points=5)
    neighbours = {**result["images"][0], "classes": [list(range(5))] * 5}
    (panel,) = drawn("boundary", {"a": {**result, "images": [neighbours]}}, panels=1).axes
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
    result = measure("boundary", model, (x, y), points=3)
    right = model(x).argmax(1) == y
    assert (result["n"], result["correct"]) == (30, int(right.sum()))
    changed = model(fgsm(model, x, y, THREAT)).argmax(1) != y
    assert result["fooled"]["FGSM"] == int((right & changed).sum())
    sentence = create("boundary", panels=2).sentence(result)
    assert f"{result['correct']} of 30 images are classified correctly" in sentence
    assert "the picture shows the first 2" in sentence


def test_landscapes_have_round_ticks_and_show_the_loss_on_the_way_to_the_fgsm_example() -> None:
    result = measure("landscape", smooth(), images(), points=5)
    larger = {**result, "loss": [[7.3 * value for value in row] for row in result["loss"]]}
    larger["way"] = [1.0, 2.0, 1.75, 3.0]  # higher at the end than in its bump
    figure = drawn("landscape", {"a": result, "b": larger})
    bars = [panel for panel in figure.axes if "own scale" in panel.get_ylabel()]
    assert bars[0].get_yticks()[-1] < 5 * max(result["way"])  # the bump is visible
    assert len(bars) == 2
    for bar in bars:
        step = bar.get_yticks()[1] - bar.get_yticks()[0]
        assert round(step / 10 ** math.floor(math.log10(step) + 1e-9), 6) in (1, 2, 5)
    (panel,) = [panel for panel in figure.axes if "falls by up to 0.25" in panel.get_title()]
    assert panel.lines[0].get_ydata().tolist() == larger["way"]
    sentence = create("landscape").sentence
    assert "falls by up to 0.25" in sentence(larger)
    assert "rises all the way" in sentence({**result, "way": [0.5, 0.7, 0.7]})


@pytest.mark.parametrize(("n", "shaded"), [(20, False), (200, True)])
def test_eps_curve_shades_no_rise_of_a_few_images(n: int, shaded: bool) -> None:
    rise = {"n": n, "index": 0.05, "rise": {"from": 0.5, "to": 1.0}}
    (panel,) = drawn("eps-curve", {"a": measure("eps-curve", smooth(), images(4)) | rise}).axes
    labels = [text.get_text() for text in panel.get_legend().get_texts()]
    assert ("largest rise" in labels) == bool(panel.patches) == shaded
    assert f"({n // 20} images)" in " ".join(panel.get_title().split())


def test_curvature_panels_share_axes_and_explain_their_lines() -> None:
    results = {name: measure("curvature", smooth(seed), images()) for name, seed in (("a", 0), ("b", 3))}
    axes = drawn("curvature", results).axes
    for above, below in zip(axes[:4], axes[4:], strict=True):
        assert above.get_ylim() == below.get_ylim()
        labels = {text.get_text() for text in below.get_legend().get_texts()}
        assert set(above.get_legend_handles_labels()[1]) == labels
        assert above.get_xlabel()
        assert above.get_ylabel()


def test_training_tells_methods_from_attacks_and_counts_whole_steps(logged: dict[str, Result]) -> None:
    aligned, accuracy = drawn("training", {"fgsm": logged["training"]}).axes[:2]
    assert aligned.get_legend_handles_labels()[1] == ["fgsm", "alarm of fgsm"]
    assert " ".join(accuracy.get_title().split()) == "fgsm ends at 20 % under PGD-10; alarm at step 22"
    assert accuracy.get_legend_handles_labels()[1] == ["clean", "FGSM", "PGD-10", "alarm"]
    assert all(float(tick).is_integer() for tick in accuracy.get_xticks())


def test_training_gives_a_run_one_colour_and_an_attack_one_style(logged: dict[str, Result]) -> None:
    runs = {method: {**logged["training"], "method": method} for method in ("fgsm", "sora")}
    figure = drawn("training", runs)
    aligned, *accuracies = figure.axes
    colours = {line.get_label(): line.get_color() for line in aligned.lines}
    expected = {"fgsm": RED, "alarm of fgsm": RED, "sora": BLUE, "alarm of sora": BLUE}
    assert colours == expected
    for panel, colour in zip(accuracies, (RED, BLUE), strict=True):
        assert {line.get_color() for line in panel.lines} == {colour}
    styles = [[line.get_linestyle() for line in panel.lines[:3]] for panel in accuracies]
    assert styles == [[":", "--", "-"]] * 2
    figure.draw_without_rendering()
    left = min(panel.yaxis.label.get_window_extent().x0 for panel in figure.axes if panel.get_ylabel())
    assert left > 0.005 * figure.bbox.width


@pytest.mark.parametrize("name", ["samples", "fallen"])
def test_images_have_the_names_of_their_classes(name: str) -> None:
    probe = create(name)
    for classes, word in (([], "class "), ([f"kind {k}" for k in range(10)], "kind ")):
        result = probe.measure(ProbedModel(smooth(), images(), THREAT, classes=classes))
        titles = [panel.title for panel in probe.figure({"run": result}).panels if panel and panel.title]
        assert titles
        assert all(text.startswith((word, f"→ {word}")) for text in titles)


def test_fallen_images_are_named_by_their_position_in_the_set_they_were_chosen_from() -> None:
    model, (x, _) = smooth(), images(40)
    pair = x, model(x).argmax(1)  # all are correct
    own = measure("fallen", model, pair)["fallen"]
    assert own
    there = [3 * number + 1 for number in range(40)]
    chosen = create("fallen").measure(ProbedModel(model, pair, THREAT, positions=there))["fallen"]
    assert [entry["image"] for entry in chosen] == [3 * entry["image"] + 1 for entry in own]
    assert [entry["label"] for entry in own] == [int(pair[1][entry["image"]]) for entry in own]
