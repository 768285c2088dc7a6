"""All numbers of a run in one scaled plot, with a closer look at the alarm (Figures 3, 14 and 15)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from sora._files import read_json_lines
from sora.report._figure import panels, save

LOGARITHMIC = ("kl", "elle")  # without a bounded range: the logarithm, scaled to the run's own range
SCALED = ("loss", "step_size")  # scaled to the run's own range as they are
LINES = {  # what is drawn, the most telling first; the JSON has the rest as well
    "pert_align": ("black", "-"),
    "gradalign": ("#0b6e99", "-"),
    "altpertalign": ("#0b6e99", "--"),
    "fgsm": ("#e08214", "-"),
    "pgd": ("#2d004b", "-"),
    "aae": ("#c1272d", "-"),
    "kl": ("#3c8d40", "-"),
    "elle": ("#3c8d40", "--"),
    "loss": ("#888888", ":"),
    "step_size": ("#b15928", ":"),
    "held-out clean": ("#888888", "-"),
    "held-out fgsm": ("#e08214", "-"),
    "held-out pgd10": ("#2d004b", "-"),
}
ZOOM = 60  # steps on either side of the alarm
WINDOW = 200


def traces(folder: Path) -> dict[str, Any]:
    """Every series of a run as steps, raw values and values scaled for one plot, and its events.

    Accuracies and cosines keep their own range. After a rollback a step may occur twice: the line of the
    last attempt is kept.
    """
    series: dict[str, dict[int, float]] = {}
    for line in read_json_lines(folder / "metrics.jsonl") + read_json_lines(folder / "monitors.jsonl"):
        for name, value in line.items():
            if name not in ("step", "epoch", "attempt", "n", "lr") and value is not None:
                series.setdefault(name, {})[line["step"]] = value
    for line in read_json_lines(folder / "evals.jsonl"):
        for name, value in line["accuracy"].items():
            series.setdefault(f"held-out {name}", {})[line["step"]] = value
    ordered = {name: dict(sorted(points.items())) for name, points in series.items()}
    aligned = list(ordered.get("pert_align", {}).items())
    flagged = falling_windows([value for _, value in aligned])
    return {
        "series": {name: _series(name, points) for name, points in ordered.items()},
        "events": read_json_lines(folder / "events.jsonl"),
        "falls": [aligned[start][0] for start in flagged],
    }


def _series(name: str, points: Mapping[int, float]) -> dict[str, Any]:
    values = list(points.values())
    return {"steps": list(points), "values": values, "scaled": scaled(name, values)}


def scaled(name: str, values: Sequence[float]) -> list[float]:
    """Values as they are drawn: in [0, 1] over the run where they have no range of their own."""
    if name in LOGARITHMIC:
        values = [math.log10(max(value, 1e-12)) for value in values]
    elif name not in SCALED:
        return list(values)
    low, high = min(values), max(values)
    return [(value - low) / (high - low) if high > low else 0.5 for value in values]


def falling_windows(values: Sequence[float], width: int = WINDOW, fall: float = 0.5) -> list[int]:
    """Where collapses lie in a finished series, for plots: starts of windows whose end is far lower.

    A window is flagged when the mean of its first quarter exceeds the mean of its last by `fall`; of
    consecutive flagged windows the first is reported.
    """
    width = min(width, len(values))
    quarter = width // 4
    if quarter == 0:
        return []
    found, flagged = [], False
    for start in range(len(values) - width + 1):
        window = values[start : start + width]
        now = sum(window[:quarter]) - sum(window[-quarter:]) >= fall * quarter
        if now and not flagged:
            found.append(start)
        flagged = now
    return found


def traces_picture(found: Mapping[str, Mapping[str, Any]], file: Path) -> None:
    """One panel a run and, beside the panel of a run that raised an alarm, a closer look at it."""
    looks = []
    for name, run in found.items():
        looks.append((name, run, None))
        alarms = [event["step"] for event in run["events"] if event["event"] == "alarm"]
        if alarms:
            looks.append((f"{name}, around the alarm at step {alarms[0]}", run, alarms[0]))
    figure, axes = panels(len(looks), width=7.0, height=4.6)
    for panel, (title, run, centre) in zip(axes, looks, strict=True):
        _draw(panel, run, centre)
        panel.set(title=title, xlabel="step", ylim=(-0.15, 1.05))
    handles, labels = axes[0].get_legend_handles_labels()
    figure.set_layout_engine("constrained")
    figure.legend(handles, labels, loc="outside lower center", ncols=7, frameon=False, fontsize=8)
    save(figure, file)


def _draw(panel: Axes, run: Mapping[str, Any], centre: int | None) -> None:
    low, high = (-math.inf, math.inf) if centre is None else (centre - ZOOM, centre + ZOOM)
    for name, (colour, style) in LINES.items():
        line = run["series"].get(name, {"steps": [], "scaled": []})
        pairs = zip(line["steps"], line["scaled"], strict=True)
        points = [(step, value) for step, value in pairs if low <= step <= high]
        constant = name in SCALED and len(set(line["scaled"])) == 1  # a fixed step size tells nothing
        if not points or constant:
            continue
        unit = "log, scaled" if name in LOGARITHMIC else "scaled" if name in SCALED else ""
        label = f"{name} ({unit})" if unit else name
        width = 2.2 if name == "pert_align" else 1.2
        panel.plot(*zip(*points, strict=True), label=label, color=colour, linestyle=style, linewidth=width)
    for event in run["events"]:
        if event["event"] in ("alarm", "recovered") and low <= event["step"] <= high:
            colour = "#c1272d" if event["event"] == "alarm" else "#3c8d40"
            panel.axvline(event["step"], color=colour, linestyle=":", linewidth=1.4)
