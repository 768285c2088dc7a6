"""The page: everything about some runs in one HTML file that needs no network."""

from __future__ import annotations

import base64
import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from sora import __version__, probes
from sora._files import create_folder, write_text
from sora._typed import coerce
from sora.errors import UserError
from sora.figures import PAGES, Figure, Line, Panel, Points, on_page
from sora.probes import comparison, training
from sora.probes._records import DAMAGE, Missing, RunRecord, Setting, read_runs, settings_of
from sora.report import words

POINTS, FEWEST, MOST = 9000, 120, 600  # points per curve: the first is shared by all runs, within the others
WITH_IMAGES = 12  # runs whose images fit into the page
ANSWERED = 4  # settings in the first words of the page
WIDE = 9  # inches; a panel of that width has a row of its own
LARGEST = 6_000_000  # bytes of a page above which fewer runs are suggested


def write_page(paths: Sequence[str | Path], out: Path, title: str = "") -> list[str]:
    """Write the page about runs, or folders of runs; return what it does not show, one line each."""
    if out.suffix.lower() not in PAGES:
        raise UserError(f"{str(out)!r} must end in .html")
    _check_packages()
    runs, missing = read_runs([coerce("run", path, str) for path in paths]), list[Missing]()
    page = Page(len(runs))
    several, settings = len(runs) > 1, settings_of(runs, missing)
    content = {
        "answers": _made({own.name: partial(words.answers, own) for own in settings[:ANSWERED]}, missing),
        "comparison": page.comparison(settings, missing) if several and settings else None,
        "runs": [page.run(run, not several) for run in runs],
        "missing": missing,
    }
    _write(out, title or (f"{len(runs)} runs" if several else f"Run {runs[0].label}"), page, content)
    left_out = [f"{run.label}: {each.what}" for run in runs for each in run.missing]
    if (size := out.stat().st_size) > LARGEST:
        left_out.append(f"the page is {size / 1e6:.1f} MB; include fewer runs")
    return left_out


def write_figure_page(figure: Figure, out: Path, title: str) -> None:
    """Write a page with one figure."""
    _check_packages()
    page = Page(1)
    _write(out, title, page, {"figures": [page.figure(figure.title or title, figure)]})


def _write(out: Path, title: str, page: Page, content: Mapping[str, Any]) -> None:
    from jinja2 import Environment, StrictUndefined
    from plotly.offline import get_plotlyjs

    script: Callable[[], Any] = get_plotlyjs  # the package has no types
    layout = {"autoescape": True, "undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    usual: dict[str, Any] = {"comparison": None, "runs": [], "missing": [], "answers": [], "figures": []}
    files = {"css": _file("page.css"), "script": _file("page.js"), "plotly": str(script())}
    about = {"title": title, "version": __version__, "plots": script_json(page.plots)}
    html = (
        Environment(**layout).from_string(_file("page.html")).render({**usual, **files, **about, **content})
    )
    create_folder(out.parent)
    write_text(out, html)


class Page:
    """Collects the figures of a page of `count` runs, among which the points of all curves are divided."""

    def __init__(self, count: int) -> None:
        self.points = max(FEWEST, min(MOST, POINTS // count))
        self.images = count <= WITH_IMAGES
        self.plots: list[dict[str, Any]] = []

    def figure(self, title: str, figure: Figure, points: int = MOST) -> dict[str, Any]:
        """Return a figure for the template; the plots that Plotly draws are collected in `plots`."""
        shown = replace(figure, panels=[*filter(_is_shown, figure.panels)])
        panels = on_page.render(shown, min(points, self.points))
        for panel in panels:
            panel["preview"] = None
            if panel["plot"] is not None:
                if not self.plots:
                    panel["preview"] = _preview(figure)
                self.plots.append(panel.pop("plot"))
                panel["number"] = len(self.plots) - 1
        about = {"title": title, "caption": figure.caption, "columns": figure.columns}
        return about | {"panels": panels, "wide": figure.width >= WIDE}

    def comparison(self, settings: Sequence[Setting], missing: list[Missing]) -> dict[str, Any]:
        """Return table and figures of finished runs side by side; what cannot be shown is noted."""
        makers: dict[str, Callable[[Sequence[Setting]], Figure]] = {
            "Relative overview": partial(_compared, "overview"),
            "Accuracy against cost": partial(_compared, "cost"),
            "Training, all runs": comparison.overlay,
            "Spread over seeds": comparison.seeds,
        }
        if len(settings) == 1:
            del makers["Relative overview"]  # it would repeat the table
        if all(len(row.runs) < 2 for setting in settings for row in setting.rows):
            del makers["Spread over seeds"]
        drawn = {
            title: lambda title=title: self.figure(title, makers[title](settings), 300) for title in makers
        }
        figures = _made(drawn, missing)
        return {"table": words.table(settings), "figures": [figure for figure in figures if figure["panels"]]}

    def run(self, run: RunRecord, is_open: bool) -> dict[str, Any]:
        """Return everything about one run."""
        results = words.note_missing(run)
        figures = [run.attempt("Curves", lambda: self.figure("Training", training.curves(run)))]
        for name, result in results.items():
            if name == "samples" and not self.images:
                what = "Images are left out of a page of many runs."
                run.missing.append(Missing(what, f"sora report {run.path}"))
                continue
            title = words.PROBES[name][1]
            figures.append(run.attempt(title, partial(self._probe, title, name, result)))
        return {
            "label": run.label,
            "path": run.path,
            "open": is_open,
            "verdict": run.attempt("Verdict", lambda: words.verdict(run)),
            "facts": run.attempt("Facts", lambda: words.facts_of(run), []),
            "accuracy": run.attempt("Accuracies", lambda: words.accuracies_of(run), []),
            "warnings": [str(text) for text in run.summary.get("warnings") or ()],
            "cost": run.attempt("Cost", lambda: words.cost_of(run), []),
            "settings": run.attempt("Settings", lambda: words.settings_by_group(run.config), []),
            "figures": [figure for figure in figures if figure and figure["panels"]],
            "missing": run.missing,
        }

    def _probe(self, title: str, name: str, result: Mapping[str, Any]) -> dict[str, Any]:
        probe = probes.create(name)
        figure = self.figure(title, probe.figure({"": dict(result)}))
        for panel in figure["panels"]:
            panel["title"], panel["name"] = panel["title"].removeprefix(": "), panel["name"].strip()
        sentence = probe.sentence(dict(result))
        return {**figure, "caption": f"{sentence[:1].upper()}{sentence[1:]}."}


def _made(makers: Mapping[str, Callable[[], Any]], missing: list[Missing]) -> list[Any]:
    """Return what the files allow to make; the rest is noted by its title."""
    made = []
    for title, make in makers.items():
        try:
            made.append(make())
        except DAMAGE as error:
            missing.append(Missing(f"{title} cannot be shown: {type(error).__name__} {error}"))
    return made


def _is_shown(panel: Panel | None) -> bool:
    """Return whether a panel has more to show than a single point."""
    drawn = [item for item in panel.items if isinstance(item, (Line, Points))] if panel else []
    points = max((len(item.x) for item in drawn if isinstance(item, Line)), default=len(drawn))
    return panel is not None and (not drawn or points > 1)


def _compared(name: str, settings: Sequence[Setting]) -> Figure:
    probe = probes.create(name)
    return probe.figure({setting.name: probe.measure(setting) for setting in settings})


def script_json(value: Any) -> str:
    """Return JSON that cannot end the script element it is embedded in."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _preview(figure: Figure) -> str:
    """Return the first panel that Plotly will draw, as a static picture to show while Plotly loads."""
    from sora.figures import on_paper

    flat = (panel for panel in figure.panels if panel is not None and on_page.is_drawn(panel))
    shape = 0.3 if figure.width >= WIDE else 0.54  # of the place it has on the page
    panel = replace(next(flat), title="", legend=False)
    small = Figure([panel], width=figure.width, height=shape * figure.width)
    return f"data:image/svg+xml;base64,{base64.b64encode(on_paper.svg(small).encode()).decode()}"


def _check_packages() -> None:
    for name in ("plotly", "jinja2"):
        if importlib.util.find_spec(name) is None:
            raise UserError("a page needs more packages: pip install 'sora-at[report]'")


def _file(name: str) -> str:
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")
