"""All numbers of a run in one scaled plot, with an enlarged view of the alarm (Figures 3, 14 and 15)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sora import figures as drawing
from sora import metrics
from sora.figures import Axis, Figure, Item, Marker, Panel, Rule, Style
from sora.metrics import Scale
from sora.probes._base import Probe, Result, register
from sora.runs import RunFolder

NOT_SERIES = (
    "step",
    "epoch",
    "attempt",
    "n",
    "lr",
    "split",
)  # fields of a log line that are not drawn over time
ZOOM, ZOOM_SHARE = 60, 1 / 6  # steps on either side of the alarm, and at most this share of the run
WINDOW = 200  # values in which a fall of PertAlign is looked for
SPARSE = 25  # a curve with at most this many values in a window gets a marker at each
STYLES: Mapping[str, Style] = {"-": "solid", "--": "dashed", ":": "dotted", "-.": "dashed"}


class Line(NamedTuple):
    """How a series is drawn."""

    colour: str
    style: str = "-"
    scale: Scale = "as is"
    width: float = 1.2


# Series that every run logs, drawn before and after the metrics chosen by --monitor.
# Colours are visible on white and on dark pages.
FIRST = {"pert_align": Line("#2f7fc1", width=2.4)}
LAST = {
    "aae_share": Line("#e377c2", "--"),
    "loss": Line("#888888", ":", "scaled"),
    "step_size": Line("#b15928", ":", "scaled"),
    **{f"{where} clean": Line("#888888") for where in ("held-out", "training")},
    **{f"{where} fgsm": Line("#e08214") for where in ("held-out", "training")},
    **{f"{where} pgd10": Line("#8b68c8", "--") for where in ("held-out", "training")},
}


def lines() -> dict[str, Line]:
    """All series that are drawn, in the order of the legend; the JSON file has the others as well."""
    entries = [metrics.info(name) for name in metrics.names()]
    drawn = {entry.name: Line(entry.colour, entry.line, entry.scale) for entry in entries if entry.colour}
    return {**FIRST, **drawn, **LAST}


@register("traces", "all numbers a run logged, in one scaled plot, with an enlarged view of the alarm")
class Traces(Probe[RunFolder]):
    """Every series of a run as steps, raw values and values scaled for one plot, and its events."""

    def measure(self, subject: RunFolder) -> Result:
        """Accuracies and cosines are not scaled.

        After a rollback a step may occur twice: the value of the last attempt is used.
        """
        series: dict[str, dict[int, float]] = {}
        for row in subject.read_log("metrics") + subject.read_log("monitors"):
            for name, value in row.items():
                if name not in NOT_SERIES and value is not None:
                    series.setdefault(name, {})[row["step"]] = value
        for row in subject.read_log("evals"):
            where = "training" if row.get("split") == "training" else "held-out"
            for name, value in row["accuracy"].items():
                series.setdefault(f"{where} {name}", {})[row["step"]] = value
        ordered = {name: dict(sorted(points.items())) for name, points in series.items()}
        aligned = list(ordered.get("pert_align", {}).items())
        falls = falling_windows([value for _, value in aligned])
        scales = {name: line.scale for name, line in lines().items()}
        return {
            "series": {
                name: {
                    "steps": list(points),
                    "values": list(points.values()),
                    "scaled": scaled(list(points.values()), scales.get(name, "as is")),
                }
                for name, points in ordered.items()
            },
            "events": subject.read_log("events"),
            "falls": [aligned[start][0] for start in falls],
        }

    def figure(self, results: Mapping[str, Result]) -> Figure:
        """One panel per run and, for a run that raised an alarm, a second one around the first alarm."""
        panels: list[Panel] = []
        for name, result in results.items():
            panels.append(panel(name, result))
            panels += [around_alarm(name, result)] if alarms(result) else []
        return Figure(panels, columns=2, width=8.0, height=5.2, legend_below="")

    def sentence(self, result: Result) -> str:
        """How many series there are, and the steps of the alarms."""
        steps = ", ".join(map(str, alarms(result)))
        return f"{len(result['series'])} series; {f'alarms at step {steps}' if steps else 'no alarms'}"


def scaled(values: Sequence[float], scale: Scale) -> list[float]:
    """Values as they are drawn: unchanged, or they or their logarithms scaled to [0, 1] over the run."""
    if scale == "as is":
        return list(values)
    if scale == "log, scaled":
        values = [math.log10(max(value, 1e-12)) for value in values]
    low, high = min(values), max(values)
    return [(value - low) / (high - low) if high > low else 0.5 for value in values]


def falling_windows(values: Sequence[float], width: int = WINDOW, fall: float = 0.5) -> list[int]:
    """Starts of windows in a finished series that end far lower than they begin.

    A window is reported when the mean of its first quarter exceeds the mean of its last by `fall`; of
    consecutive such windows only the first is.
    """
    width = min(width, len(values))
    quarter = width // 4
    if quarter == 0:
        return []
    starts, falling_before = [], False
    for start in range(len(values) - width + 1):
        window = values[start : start + width]
        falling = sum(window[:quarter]) - sum(window[-quarter:]) >= fall * quarter
        if falling and not falling_before:
            starts.append(start)
        falling_before = falling
    return starts


def _steps(result: Result) -> int:
    """The last step that was logged."""
    return max((series["steps"][-1] for series in result["series"].values()), default=0)


def alarms(result: Result) -> list[int]:
    """The steps of a run's alarms."""
    return [event["step"] for event in result["events"] if event["event"] == "alarm"]


def around_alarm(name: str, result: Result) -> Panel:
    """The panel around the first alarm of a run that has one."""
    alarm = alarms(result)[0]
    reach = max(1.0, min(ZOOM, ZOOM_SHARE * _steps(result)))
    window = (max(0.0, alarm - reach), alarm + reach)
    return panel(f"{name}, around the alarm at step {alarm}", result, window)


def panel(title: str, result: Result, window: tuple[float, float] | None = None) -> Panel:
    """All series of a run, or a window of them, over the steps."""
    low, high = window or (None, None)
    x, y = Axis("step", low, high), Axis("value; (scaled): to [0, 1] over the run", -0.15, 1.05)
    return Panel(_items(result, window), title, x, y)


def _items(result: Result, window: tuple[float, float] | None) -> list[Item]:
    items: list[Item] = []
    for name, line in lines().items():
        series = result["series"].get(name, {"steps": [], "scaled": []})
        constant = line.scale == "scaled" and len(set(series["scaled"])) == 1  # e.g. a fixed step size
        if not series["steps"] or constant:
            continue
        label = name if line.scale == "as is" else f"{name} ({line.scale})"
        look = line.colour, STYLES[line.style], line.width, _marker(series["steps"], window)
        items.append(drawing.Line(series["steps"], series["scaled"], label, *look))
    for event in result["events"]:
        if event["event"] in ("alarm", "recovered"):
            colour = "#c1272d" if event["event"] == "alarm" else "#3c8d40"
            items.append(Rule(event["step"], name=event["event"], colour=colour))
    return items


def _marker(steps: Sequence[float], window: tuple[float, float] | None) -> Marker:
    """Circles where a window has so few values that their places matter."""
    inside = [step for step in steps if window and window[0] <= step <= window[1]]
    return "circle" if 0 < len(inside) <= SPARSE else ""
