"""The picture of a comparison: PertAlign as training went on, accuracies on the held-out slice beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from sora._files import read_json_lines
from sora.report._figure import save

COLOURS = ("#c1272d", "#0b6e99", "#3c8d40", "#8a5a00", "#6a3d9a", "#444444", "#b15928", "#1b9e77")


def training_picture(runs: Mapping[str, Path], file: Path, title: str = "") -> None:
    """Draw one panel of PertAlign for all runs and one panel of accuracies for each run."""
    columns = min(len(runs), 4) + 1
    rows = math.ceil((len(runs) + 1) / columns)
    figure, grid = plt.subplots(rows, columns, figsize=(4.6 * columns, 3.6 * rows), squeeze=False)
    panels = list(grid.flat)
    _pert_align(panels[0], runs)
    for panel, (name, folder) in zip(panels[1:], runs.items(), strict=False):
        _accuracies(panel, name, folder)
    for panel in panels[len(runs) + 1 :]:
        panel.axis("off")
    if title:
        figure.suptitle(title)
    save(figure, file, dpi=130)


def _pert_align(panel: Axes, runs: Mapping[str, Path]) -> None:
    for colour, (name, folder) in zip(_colours(len(runs)), runs.items(), strict=True):
        lines = read_json_lines(folder / "metrics.jsonl")
        points = [(line["step"], line["pert_align"]) for line in lines if line["pert_align"] is not None]
        if points:
            panel.plot(*zip(*points, strict=True), color=colour, label=name, linewidth=1.8)
        for event in read_json_lines(folder / "events.jsonl"):
            if event["event"] == "alarm":
                panel.axvline(event["step"], color=colour, linestyle=":", linewidth=1.2)
                where = (event["step"], 0.97)
                panel.annotate(
                    f" alarm, step {event['step']}", where, color=colour, fontsize=8, va="top",
                    xycoords=("data", "axes fraction"),
                )  # fmt: skip
    panel.set(title="PertAlign while training", xlabel="step", ylim=(min(0.0, panel.get_ylim()[0]), 1.0))
    panel.legend(loc="best", frameon=False)


def _accuracies(panel: Axes, name: str, folder: Path) -> None:
    lines = read_json_lines(folder / "evals.jsonl")
    styles = {"clean": ("#888888", "-"), "fgsm": ("#e08214", "-"), "pgd10": ("#2d004b", "-")}
    for attack, (colour, style) in styles.items():
        points = [(line["epoch"], line["accuracy"][attack]) for line in lines if attack in line["accuracy"]]
        if points:
            panel.plot(*zip(*points, strict=True), color=colour, linestyle=style, label=attack, linewidth=1.8)
    n = next(iter(lines[0]["attacks"].values()))["n"] if lines else 0
    panel.set(title=f"{name}: accuracy, held-out slice (n = {n})", xlabel="epoch", ylim=(0, 1.02))
    panel.yaxis.set_major_formatter(PercentFormatter(1.0))
    panel.legend(loc="best", frameon=False)


def _colours(count: int) -> Sequence[str]:
    return [COLOURS[index % len(COLOURS)] for index in range(count)]
