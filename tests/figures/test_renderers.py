"""One description, two renderers: every item is drawn by both."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sora import figures as fig
from sora.errors import UserError
from sora.figures import on_page, on_paper

PLANE: list[float] = [-1.0, 0.0, 1.0]
ITEMS: list[fig.Item] = [
    fig.Line([1, 2, 3], [0.1, None, 0.3], "curve", low=[0, 0, 0.2], high=[0.2, 0.2, 0.4]),
    fig.Points([1.0], [0.5], "point", spread=[0.1]),
    fig.Bars(["one", "two"], [3, 4]),
    fig.Rule(0.5, "y", "level"),
    fig.Span(1, 2, "range"),
    fig.Note(0, 0, "text"),
    fig.Contours(PLANE, PLANE, [[1.0, 2.0, 3.0]] * 3, 3.0, "loss"),
    fig.Regions(PLANE, PLANE, [[0, 0, 1]] * 3, {0: "#57a0d3", 1: "#f4974a"}, 0),
    fig.Picture([[[0], [255]], [[9], [9]]]),
]


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: type(item).__name__)
def test_every_item_is_drawn_by_both_renderers(item: fig.Item, tmp_path: Path) -> None:
    figure = fig.Figure([fig.Panel([item], "title")])
    on_paper.save(figure, tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").read_text().startswith("<?xml")
    [panel] = on_page.render(figure)
    plot: Any = panel["plot"]
    layout = plot["layout"] if plot else {}
    assert panel["image"] or plot["data"] or layout.get("shapes") or layout.get("annotations")


@pytest.mark.parametrize(("name", "start"), [("a.pdf", b"%PDF"), ("a.png", b"\x89PNG"), ("a.SVG", b"<?xml")])
def test_the_ending_decides_the_format_and_the_same_figure_is_the_same_file(name, start, tmp_path) -> None:
    figure = fig.Figure([fig.Panel([fig.Line([1, 2], [3, 4], "line")]), None], title="both", legend_below="")
    contents = []
    for folder in ("one", "two"):
        on_paper.save(figure, tmp_path / folder / name)
        contents.append((tmp_path / folder / name).read_bytes())
    assert contents[0].startswith(start)
    assert contents[0] == contents[1]


def test_dollar_signs_are_no_formulas_and_bars_with_equal_labels_stay_apart(tmp_path: Path) -> None:
    name = "a$_$b"
    panel = fig.Panel(
        [fig.Line([1, 2], [3, 4], name), fig.Note(1, 3, name)], name, fig.Axis(name, names={1.0: name})
    )
    figure = fig.Figure([panel, fig.Panel([fig.Bars([name], [1])])], title=name)
    on_paper.save(figure, tmp_path / "figure.png")
    assert on_paper.svg(figure).startswith("<?xml")
    [axes] = on_paper.draw(fig.Figure([fig.Panel([fig.Bars(["same", "same"], [3, 4])])])).axes
    assert [bar.get_x() + bar.get_width() / 2 for bar in axes.patches] == [0, 1]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["same", "same"]
    [panel] = on_page.render(fig.Figure([fig.Panel([fig.Bars(["same", "same"], [3, 4])])]))
    plot = panel["plot"]
    assert plot["data"][0]["x"] == [0, 1]
    assert plot["layout"]["xaxis"]["ticktext"] == ["same", "same"]


def test_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"must end in one of \.pdf, \.svg, \.png"):
        on_paper.save(fig.Figure([fig.Panel(ITEMS[:1])]), tmp_path / "figure.gif")


def test_text_on_the_page_is_shown_literally_and_numbers_are_short_and_never_nan() -> None:
    items: list[fig.Item] = [fig.Line([1], [2], "<a href='x'>link</a> & more"), fig.Note(0, 0, "<b>")]
    [panel] = on_page.render(fig.Figure([fig.Panel(items, x=fig.Axis("<i>"))]))
    plot = panel["plot"]
    assert plot["data"][-1]["name"] == "&lt;a href='x'&gt;link&lt;/a&gt; &amp; more"
    assert plot["layout"]["annotations"][0]["text"] == "&lt;b&gt;"
    assert plot["layout"]["xaxis"]["title"]["text"] == "&lt;i&gt;"
    [panel] = on_page.render(
        fig.Figure([fig.Panel([fig.Line([1, 2, 3], [0.123456, float("nan"), float("inf")])])])
    )
    assert panel["plot"]["data"][-1]["y"] == [0.1235, None, None]


def test_files_beside_a_figure_are_not_touched_and_infinity_is_left_out(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / ".figure.png").symlink_to(victim)
    (tmp_path / "figure.png").symlink_to(victim)
    on_paper.save(fig.Figure([fig.Panel(ITEMS[:1])]), tmp_path / "figure.png")
    assert victim.read_text() == "mine"
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "figure.png").is_symlink()
    items: list[fig.Item] = [
        fig.Line([1], [2]),
        fig.Rule(math.inf, "y", "cap"),
        fig.Span(0, math.nan),
        fig.Note(math.inf, 0, "n"),
    ]
    [panel] = on_page.render(fig.Figure([fig.Panel(items)]))
    json.dumps(panel, allow_nan=False)
    assert panel["plot"]["layout"].get("shapes", []) == []


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=400), st.integers(4, 60))
def test_extremes_ends_and_order_are_kept(values: list[float], points: int) -> None:
    x, y = fig.thin(list(range(len(values))), values, points)
    assert len(x) <= max(points, 4)
    assert (x[0], x[-1]) == (0, len(values) - 1)
    assert x == sorted(set(x))
    assert [values[int(step)] for step in x] == y
    assert min(y) == min(values)  # type: ignore[type-var]
    assert max(y) == max(values)  # type: ignore[type-var]


def test_a_short_curve_is_unchanged() -> None:
    assert fig.thin([1, 2, 3], [0.5, None, 0.7], 3) == ([1, 2, 3], [0.5, None, 0.7])
