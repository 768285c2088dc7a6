"""The curves of one run: loss, PertAlign and linearity, step size with its cap, accuracies; alarms marked."""

from __future__ import annotations

import math
from collections.abc import Mapping

from sora.figures import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    Axis,
    Figure,
    Item,
    Line,
    Panel,
    Rule,
    Style,
)
from sora.report.reading import RunRecord, watched_images
from sora.report.sentences import title_of

ATTACKS: Mapping[str, tuple[str, Style]] = {
    "clean": (GREY, "dotted"),
    "fgsm": (ORANGE, "dashed"),
    "pgd10": (BLUE, "solid"),
}
STEP = Axis("step", whole=True)


def curves(run: RunRecord) -> Figure:
    """All panels for which the run has values."""
    alarms = alarm_rules(run)
    panels = [_accuracy(run), _alignment(run), step_size(run), _loss(run)]
    present = [panel for panel in panels if panel.items]
    shown = [
        Panel([*panel.items, *alarms], panel.title, panel.x, panel.y, legend=panel.legend)
        for panel in present
    ]
    return Figure(shown, columns=2, caption="Dotted red lines mark alarms." if alarms else "")


def series(run: RunRecord, key: str) -> tuple[list[float], list[float | None]]:
    """The steps and values of one entry of the log; after a rollback, those of the last attempt."""
    rows = {row["step"]: row[key] for row in run.logs["metrics"] if row.get(key) is not None}
    steps = sorted(rows)
    return steps, [rows[step] for step in steps]


def alarm_rules(run: RunRecord) -> list[Rule]:
    """An upright line at every alarm."""
    steps = [row["step"] for row in run.logs["events"] if row.get("event") == "alarm"]
    return [Rule(step, name="alarm", colour=RED, in_legend=number == 0) for number, step in enumerate(steps)]


def _lines(run: RunRecord, keys: Mapping[str, tuple[str, str]]) -> list[Item]:
    drawn: list[Item] = []
    for key, (name, colour) in keys.items():
        x, y = series(run, key)
        if x:
            drawn.append(Line(x, y, name, colour))
    return drawn


def _loss(run: RunRecord) -> Panel:
    items = _lines(run, {"loss": ("training loss", PURPLE)})
    return Panel(items, "Loss", STEP, Axis("training loss", low=0), legend=True)


def _alignment(run: RunRecord) -> Panel:
    keys = {"pert_align": ("PertAlign", BLUE), "linearity": ("linearity coefficient", GREEN)}
    return Panel(_lines(run, keys), "PertAlign and linearity", STEP, Axis("cosine; coefficient"))


def step_size(run: RunRecord) -> Panel:
    """The length of the attack's step, in linf in 1/255, with SORA's cap (Figures 5 and 12)."""
    x, y = series(run, "step_size")
    threat = run.summary.get("threat") or run.config.get("threat") or {}
    levels, unit, label = (1, "", "step size")
    if threat.get("norm") != "l2":
        levels, unit, label = 255, "/255", "step size (1/255)"
    items: list[Item] = []
    if x:
        items.append(Line(x, [levels * value for value in y if value is not None], "step size", BLUE))
        eps = run.summary.get("threat", {}).get("eps") or run.folder.read_settings().threat().eps
        if eps:
            items.append(Rule(levels * eps, "y", f"eps = {levels * eps:.3g}{unit}", GREY, "dashed"))
        cap = (run.config.get("threat", {}).get("set") or {}).get("sora.alpha_max")
        if eps and cap is not None and math.isfinite(cap):
            items.append(Rule(levels * eps * cap, "y", f"cap = {cap:g} eps", RED, "dashed"))
    return Panel(items, "Step size of the attack", STEP, Axis(label, low=0))


def _accuracy(run: RunRecord) -> Panel:
    rows = [row for row in run.logs["evals"] if row.get("accuracy")]
    items: list[Item] = []
    for attack, (colour, style) in ATTACKS.items():
        own = {row["step"]: row["accuracy"][attack] for row in rows if attack in row["accuracy"]}
        if own:
            x, y = sorted(own), [own[step] for step in sorted(own)]
            items.append(Line(x, y, title_of(attack), colour, style, marker="circle" if len(x) < 40 else ""))
    attacks = rows[0].get("attacks") if rows else None
    n = f" (n = {next(iter(attacks.values()))['n']})" if attacks else ""
    title = f"Accuracy on {watched_images(rows)}"
    return Panel(items, title, STEP, Axis(f"accuracy{n}", 0, 1.02, percent=True))
