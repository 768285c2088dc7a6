"""All numbers of a run in one scaled plot, with an enlarged view of the alarm (Figures 3, 14 and 15)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sora import metrics
from sora.metrics import Scale
from sora.probes._base import Probe, Result
from sora.probes._registry import register
from sora.runs import RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NOT_SERIES = (
    "step",
    "epoch",
    "attempt",
    "n",
    "lr",
    "split",
)  # fields of a log line that are not drawn over time
ZOOM, ZOOM_SHARE = 60, 1 / 6  # steps on either side of the alarm, and at most this share of the run
WINDOW = 200


class Line(NamedTuple):
    """How a series is drawn."""

    colour: str
    style: str = "-"
    scale: Scale = "as is"
    width: float = 1.2


# Series that every run logs, drawn before and after the metrics chosen by --monitor.
FIRST = {"pert_align": Line("black", width=2.2)}
LAST = {
    "aae_share": Line("#e377c2", "--"),
    "loss": Line("#888888", ":", "scaled"),
    "step_size": Line("#b15928", ":", "scaled"),
    **{f"{where} clean": Line("#888888") for where in ("held-out", "training")},
    **{f"{where} fgsm": Line("#e08214") for where in ("held-out", "training")},
    **{f"{where} pgd10": Line("#2d004b", "--") for where in ("held-out", "training")},
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

    def picture(self, results: Mapping[str, Result], file: Path) -> None:
        """One panel per run and, for a run that raised an alarm, a second one around the first alarm."""
        from sora._drawing import legend_below, panels, save

        views: list[tuple[str, Result, tuple[float, float] | None]] = []
        for name, result in results.items():
            views.append((name, result, None))
            for alarm in _alarms(result)[:1]:
                reach = max(1.0, min(ZOOM, ZOOM_SHARE * _steps(result)))
                window = (max(0.0, alarm - reach), alarm + reach)
                views.append((f"{name}, around the alarm at step {alarm}", result, window))
        figure, axes = panels(len(views), width=8.0, height=5.2, columns=2)
        legend: dict[str, Any] = {}
        for panel, (title, result, around) in zip(axes, views, strict=True):
            _draw(panel, result, marker="." if around else "")
            if around:
                panel.set_xlim(*around)
            panel.set_title(title, fontsize=13)
            panel.set_xlabel("step", fontsize=12)
            panel.set_ylabel("value; (scaled): to [0, 1] over the run", fontsize=12)
            panel.tick_params(labelsize=11)
            panel.set_ylim(-0.15, 1.05)
            legend |= dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
        figure.set_layout_engine("constrained")
        legend_below(figure, legend, fontsize=12)
        save(figure, file)

    def sentence(self, result: Result) -> str:
        """How many series there are, and the steps of the alarms."""
        steps = ", ".join(map(str, _alarms(result)))
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


def _alarms(result: Result) -> list[int]:
    return [event["step"] for event in result["events"] if event["event"] == "alarm"]


def _draw(panel: Axes, result: Result, marker: str) -> None:
    for name, line in lines().items():
        series = result["series"].get(name, {"steps": [], "scaled": []})
        constant = line.scale == "scaled" and len(set(series["scaled"])) == 1  # e.g. a fixed step size
        if not series["steps"] or constant:
            continue
        label = name if line.scale == "as is" else f"{name} ({line.scale})"
        panel.plot(
            series["steps"], series["scaled"], label=label, color=line.colour, linestyle=line.style,
            linewidth=line.width, marker=marker,
        )  # fmt: skip
    for event in result["events"]:
        if event["event"] in ("alarm", "recovered"):
            colour = "#c1272d" if event["event"] == "alarm" else "#3c8d40"
            panel.axvline(event["step"], color=colour, linestyle=":", linewidth=1.8, label=event["event"])
