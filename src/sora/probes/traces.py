"""All numbers of a run in one scaled plot, with an enlarged view of the alarm (Figures 3, 14 and 15)."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sora import metrics
from sora.figures import BLUE, PALETTE, Axis, Figure, Item, Line, Marker, Panel, Rule, Style
from sora.metrics import Scale
from sora.probes._base import Probe, Result, register
from sora.probes._records import alarms_of
from sora.probes.training import accuracies, alarms_text, listed, pert_align, series_of
from sora.runs import LOGS, RunFolder

ZOOM, ZOOM_SHARE = 60, 1 / 6  # steps on either side of the alarm, and at most this share of the run
WINDOW, FALL = 200, 0.5  # how many values are searched for a fall of PertAlign, and how large it must be
SPARSE = 25  # a curve with at most this many values in a window gets a marker at each
STYLES: Mapping[str, Style] = {"-": "solid", "--": "dashed", ":": "dotted", "-.": "dashed"}


class Look(NamedTuple):
    """How a series is drawn."""

    colour: str
    style: str = "-"
    scale: Scale = "as is"
    width: float = 1.2


# Series that every run logs, drawn before and after the metrics chosen by --monitor.
# Colours are visible on white and on dark pages.
ALIGNED = "pert_align", BLUE
FIRST = {"pert_align": Look(BLUE, width=2.4)}
LAST = {
    "aae_share": Look("#e377c2", "--"),
    "loss": Look("#888888", ":", "scaled"),
    "step_size": Look("#b15928", ":", "scaled"),
    **{f"{where} clean": Look("#888888") for where in ("held-out", "training")},
    **{f"{where} fgsm": Look("#e08214") for where in ("held-out", "training")},
    **{f"{where} pgd10": Look("#8b68c8", "--") for where in ("held-out", "training")},
}


def looks() -> dict[str, Look]:
    """Return all series that are drawn, in the order of the legend; the JSON file has the others as well."""
    entries = [metrics.info(name) for name in metrics.names()]
    drawn = {entry.name: Look(entry.colour, entry.line, entry.scale) for entry in entries if entry.colour}
    return {**FIRST, **drawn, **LAST}


@register(
    "traces",
    "all numbers a run logged, in one scaled plot, with an enlarged view of the alarm",
    figures=(14, 15),
)
class Traces(Probe[RunFolder]):
    """Every series of a run as steps, raw values and values scaled for one plot, and its events."""

    def measure(self, subject: RunFolder) -> Result:
        """Read all series; accuracies and cosines are not scaled."""
        logs, config = {name: subject.read_log(name) for name in LOGS}, subject.read_config()
        series = series_of(logs["metrics"], logs["monitors"])
        for where in ("training", "held-out"):
            rows = [row for row in logs["evals"] if (row.get("split") == "training") == (where == "training")]
            series |= {f"{where} {attack}": values for attack, values in accuracies(rows).items()}
        aligned = series.get("pert_align", {})
        scales = {name: look.scale for name, look in looks().items()}
        return {
            "method": (config.get("threat") or {}).get("method"),
            "series": {
                name: {**listed(points), "scaled": scaled([*points.values()], scales.get(name, "as is"))}
                for name, points in series.items()
            },
            "events": logs["events"],
            "falls": [list(aligned)[start] for start in falling_windows([*aligned.values()])],
        }

    def figure(self, results: Mapping[str, Result]) -> Figure:
        """Draw a panel per run and, for a run that raised an alarm, a second one around the first alarm."""
        panels: list[Panel] = []
        for name, result in results.items():
            panels.append(_panel(name, result))
            panels += _around_alarm(name, result)
        return Figure(panels, columns=2, width=8.0, height=5.2, legend_below="")

    def sentence(self, result: Result) -> str:
        """State how many series there are, and the steps of the alarms."""
        return f"{len(result['series'])} series; {alarms_text(alarms_of(result['events']))}"


@register(
    "collapse", "PertAlign of all runs, and all metrics around the first alarm", of="traces", figures=(3,)
)
class Collapse(Traces):
    """PertAlign of all runs in one panel, then the surroundings of each run's first alarm."""

    def figure(self, results: Mapping[str, Result]) -> Figure:
        """Draw PertAlign in the same colour in all panels; SORA's runs have SORA's."""
        others = iter(PALETTE[1:] * len(results))
        curves, around = [], []
        for name, result in results.items():
            aligned = f"PertAlign of {name}", BLUE if result.get("method") == "sora" else next(others)
            series = result["series"].get("pert_align", {"steps": [], "values": []})
            curves.append((*aligned, series, alarms_of(result["events"])))
            around += _around_alarm(name, result, aligned)
        return Figure([pert_align(curves), *around], columns=2, width=7.0, height=4.6, legend_below="")


def scaled(values: Sequence[float], scale: Scale) -> list[float]:
    """Return values as they are drawn: unchanged, or they or their logarithms scaled to [0, 1]."""
    if scale == "as is":
        return list(values)
    if scale == "log, scaled":
        values = [math.log10(max(value, 1e-12)) for value in values]
    low, high = min(values), max(values)
    return [(value - low) / (high - low) if high > low else 0.5 for value in values]


def falling_windows(values: Sequence[float]) -> list[int]:
    """Return the starts of windows in a finished series that end far lower than they begin.

    A window is reported when the mean of its first quarter exceeds the mean of its last by `FALL`; of
    consecutive such windows only the first is.
    """
    width = min(WINDOW, len(values))
    quarter = width // 4
    windows = [values[start : start + width] for start in range(len(values) - width + 1)] if quarter else []
    falling = [sum(window[:quarter]) - sum(window[-quarter:]) >= FALL * quarter for window in windows]
    return [start for start, falls in enumerate(falling) if falls and not (start and falling[start - 1])]


def _around_alarm(name: str, result: Result, aligned: tuple[str, str] = ALIGNED) -> list[Panel]:
    """Return the panel around the first alarm of a run; none without an alarm."""
    alarms = alarms_of(result["events"])
    if not alarms:
        return []
    last = max((series["steps"][-1] for series in result["series"].values()), default=0)
    reach = max(1.0, min(ZOOM, ZOOM_SHARE * last))
    window = (max(0.0, alarms[0] - reach), alarms[0] + reach)
    return [_panel(f"{name}, around the alarm at step {alarms[0]}", result, window, aligned)]


def _panel(
    title: str,
    result: Result,
    window: tuple[float, float] | None = None,
    aligned: tuple[str, str] = ALIGNED,
) -> Panel:
    """Draw all series of a run, or a window of them, over the steps; `aligned`: PertAlign's look."""
    low, high = window or (None, None)
    items: list[Item] = []
    for name, look in looks().items():
        series = result["series"].get(name, {"steps": [], "scaled": []})
        constant = look.scale == "scaled" and len(set(series["scaled"])) == 1  # e.g. a fixed step size
        if series["steps"] and not constant:
            label = name if look.scale == "as is" else f"{name} ({look.scale})"
            drawn = aligned if name == "pert_align" else (label, look.colour)
            inside = [step for step in series["steps"] if window and window[0] <= step <= window[1]]
            marker: Marker = "circle" if 0 < len(inside) <= SPARSE else ""
            style = STYLES[look.style]
            items.append(Line(series["steps"], series["scaled"], *drawn, style, look.width, marker))
    for event in result["events"]:
        if event["event"] in ("alarm", "recovered"):
            colour = "#c1272d" if event["event"] == "alarm" else "#3c8d40"
            items.append(Rule(event["step"], name=event["event"], colour=colour))
    y = Axis("value; (scaled): to [0, 1] over the run", -0.15, 1.05)
    return Panel(items, title, Axis("step", low, high), y)
