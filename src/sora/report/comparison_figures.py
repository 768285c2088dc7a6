"""Figures that compare runs: relative overview, accuracy against cost, curves, spread over the seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sora.figures import Axis, Figure, Item, Line, Marker, Panel, Points
from sora.report.comparison import STAR, Row, Setting
from sora.report.reading import watched_images
from sora.report.run_figures import STEP, series
from sora.report.sentences import title_of

Colours = Mapping[str, str]
Accuracies = Mapping[str, Mapping[str, float]]  # setting -> method -> accuracy


def means(settings: Sequence[Setting], attack: str) -> dict[str, dict[str, float]]:
    """The mean accuracy of every row under one attack, by setting."""
    short = len({setting.radius for setting in settings}) == 1
    found: dict[str, dict[str, float]] = {}
    for setting in settings:
        title = f"{setting.dataset}\n{setting.model}" + ("" if short else f"\neps {setting.radius}")
        rows = {row.name: row.entry["accuracy"].get(attack, {}).get("mean") for row in setting.rows}
        found[title] = {name: mean for name, mean in rows.items() if mean is not None and mean == mean}
    return found


def overview(robust: Accuracies, clean: Accuracies, colours: Colours, attack: str) -> Figure:
    """Every accuracy divided by the highest of its setting, robust and clean (Figure 6)."""
    titles = {f"Relative accuracy under {attack}": robust, "Relative clean accuracy": clean}
    panels = [_relative(title, values, colours) for title, values in titles.items()]
    text = "Each accuracy divided by the highest of its column: 100 % is the best method of a setting."
    return Figure(panels, columns=1, width=9.5, height=3.9, legend_below="", caption=text)


def _relative(title: str, accuracies: Accuracies, colours: Colours) -> Panel:
    best = [max(own.values(), default=0.0) for own in accuracies.values()]
    names = list(dict.fromkeys(name for own in accuracies.values() for name in own))
    markers = _markers(names, colours)
    items: list[Item] = []
    # Side by side within a column, so that equal values do not hide each other; SORA is drawn on top.
    for number, name in enumerate(sorted(names, key=lambda name: name == STAR)):
        values = [
            own[name] / top if name in own and top else None
            for own, top in zip(accuracies.values(), best, strict=True)
        ]
        star = name == STAR
        beside = 0.6 * ((number + 0.5) / len(names) - 0.5)
        places, colour = [place + beside for place in range(len(values))], colours.get(name, "#878d96")
        items.append(Points(places, values, name, colour, markers[name], 12 if star else 6.5))
    ticks = {float(place): text for place, text in enumerate(accuracies)}
    width = Axis("", -0.5, len(accuracies) - 0.5, names=ticks)
    return Panel(items, title, width, Axis("share of the best", -0.03, 1.06, percent=True))


def _markers(names: Sequence[str], colours: Colours) -> dict[str, Marker]:
    """A marker for each name that sets it apart from the others of its colour."""
    kinds: tuple[Marker, ...] = ("circle", "square", "triangle", "diamond")
    seen: Counter[str] = Counter()
    markers: dict[str, Marker] = {}
    for name in names:
        colour = colours.get(name, "")
        markers[name] = "star" if name == STAR else kinds[seen[colour] % len(kinds)]
        seen[colour] += 1
    return markers


def against_cost(settings: Sequence[Setting], attack: str, colours: Colours) -> Figure:
    """Robust accuracy over training time and over memory, for each setting (Figures 7 and 16)."""
    costs = {"train_seconds": "training time (s)", "peak_memory_mb": "peak memory (MB)"}
    panels = [
        _cost_panel(setting, attack, key, label, colours)
        for setting in settings
        for key, label in costs.items()
    ]
    present = _present(panels, settings)
    return Figure(present, columns=2, caption="The star marks SORA; bars show the deviation over seeds.")


def _cost_panel(setting: Setting, attack: str, key: str, label: str, colours: Colours) -> Panel:
    items: list[Item] = []
    right = top = 0.0
    for row in setting.rows:
        cost, accuracy = row.entry[key]["mean"], row.entry["accuracy"].get(attack)
        if accuracy is None or not _known(cost) or not _known(accuracy["mean"]):
            continue
        spread = [accuracy["std"] if _known(accuracy["std"]) else 0.0]
        right, top = max(right, cost), max(top, accuracy["mean"] + spread[0])
        star = row.name == STAR
        look: dict[str, Any] = {"marker": "star" if star else "circle", "size": 13 if star else 8}
        place = [cost], [accuracy["mean"]]
        items.append(Points(*place, row.name, colours[row.name], spread=spread, **look))
    y = Axis(f"accuracy under {title_of(attack)}", 0, 1.12 * top or None, percent=True)
    title = f"{title_of(attack)} accuracy over {label.partition(' (')[0]}; {setting.title}"
    return Panel(items, title, Axis(label, 0, 1.12 * right or None), y)


def _present(panels: Sequence[Panel], settings: Sequence[Setting]) -> list[Panel]:
    """The panels that show something; a single setting is not repeated in every title."""
    shown = [panel for panel in panels if panel.items]
    if len(settings) > 1:
        return shown
    return [replace(panel, title=panel.title.partition("; ")[0]) for panel in shown]


def _known(value: Any) -> bool:
    return value is not None and value == value


def overlaid(settings: Sequence[Setting], attack: str, colours: Colours) -> Figure:
    """Robust accuracy and PertAlign of all runs over their steps; a colour per row."""
    panels: list[Panel] = []
    for setting in settings:
        accuracy = _overlay(setting, colours, lambda run: _watched(run, attack))
        where = watched_images(line for row in setting.rows for run in row.runs for line in run.logs["evals"])
        title = f"Accuracy under {title_of(attack)} on {where}; {setting.title}"
        y = Axis(f"accuracy under {title_of(attack)}", 0, None, percent=True)
        panels.append(Panel(accuracy, title, STEP, y))
        align = _overlay(setting, colours, lambda run: series(run, "pert_align"))
        panels.append(Panel(align, f"PertAlign; {setting.title}", STEP, Axis("PertAlign")))
    present = _present(panels, settings)
    return Figure(present, columns=2, caption="One line per run, one colour per method.")


def _overlay(setting: Setting, colours: Colours, values: Callable[[Any], Any]) -> list[Item]:
    items: list[Item] = []
    for row in setting.rows:
        drawn = 0
        for run in row.runs:
            x, y = values(run)
            if x:
                items.append(Line(x, y, row.name, colours[row.name], width=1.4, in_legend=drawn == 0))
                drawn += 1
    return items


def _watched(run: Any, attack: str) -> tuple[list[float], list[float | None]]:
    own = {row["step"]: row["accuracy"].get(attack) for row in run.logs["evals"] if row.get("accuracy")}
    known = sorted(step for step, value in own.items() if value is not None)
    return known, [own[step] for step in known]


def seeds(settings: Sequence[Setting], attack: str, colours: Colours) -> Figure:
    """The robust accuracy of every seed, and the mean of each row."""
    panels = [_seed_panel(setting, attack, colours) for setting in settings]
    return Figure(_present(panels, settings), columns=2, caption="One circle per seed; the bar is the mean.")


def _seed_panel(setting: Setting, attack: str, colours: Colours) -> Panel:
    rows: list[Row] = [row for row in setting.rows if attack in row.entry["accuracy"]]
    items: list[Item] = []
    for place, row in enumerate(rows):
        accuracy = row.entry["accuracy"][attack]
        values = [value for value in accuracy["values"] if value is not None]
        if values:
            mean = Line(
                [place - 0.25, place + 0.25], [accuracy["mean"]] * 2, "", colours[row.name], width=2.5
            )
            dots = Points([place] * len(values), values, row.name, colours[row.name], hollow=True, size=8)
            items += [mean, dots]
    names = {float(place): row.name for place, row in enumerate(rows)}
    x = Axis("", -0.6, len(rows) - 0.4, names=names)
    y = Axis(f"accuracy under {title_of(attack)}", 0, None, percent=True)
    title = f"Accuracy under {title_of(attack)}; {setting.title}"
    return Panel(items, title, x, y, legend=False)
