"""The curves of runs over their training steps: PertAlign, accuracies, the attack's step size, the loss."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sora.errors import UserError
from sora.figures import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PALETTE,
    PURPLE,
    RED,
    Axis,
    Figure,
    Item,
    Line,
    Marker,
    Panel,
    Rule,
    Style,
)
from sora.probes._base import Probe, Result, register
from sora.probes._records import Rows, RunRecord, alarms_of, title_of
from sora.runs import RunFolder

COLOURS = (RED, BLUE, *PALETTE[2:])  # `sora demo` compares FGSM with SORA, whose colour is blue everywhere
# In the picture of several runs a run has one colour, and attacks differ in the style of their line.
ATTACKS: Mapping[str, tuple[Style, Marker, str]] = {
    "clean": ("dotted", "circle", GREY),
    "fgsm": ("dashed", "square", ORANGE),
    "pgd10": ("solid", "diamond", BLUE),
}
STEP = Axis("step", whole=True)
NOT_SERIES = ("step", "epoch", "attempt", "n", "lr", "split")  # fields of a log line that are not drawn
Series = dict[int, float]  # by step


def series_of(*logs: Rows) -> dict[str, Series]:
    """Return every number of these logs over the steps; after a rollback, of the last attempt."""
    found: dict[str, Series] = {}
    for row in itertools.chain(*logs):
        for key, value in row.items():
            if key not in NOT_SERIES and value is not None:
                found.setdefault(key, {})[row["step"]] = value
    return {name: dict(sorted(values.items())) for name, values in found.items()}


def accuracies(evals: Rows, by: str = "step") -> dict[str, Series]:
    """Return the accuracy under each attack over the steps or epochs of a log."""
    found: dict[str, Series] = {}
    for row in evals:
        for attack, value in (row.get("accuracy") or {}).items():
            if value is not None:
                found.setdefault(attack, {})[row[by]] = value
    return {attack: dict(sorted(values.items())) for attack, values in found.items()}


def watched_images(evals: Iterable[Mapping[str, Any]]) -> str:
    """Return which images the accuracies of a log belong to: without held-out ones, training images."""
    kinds = {"training" if row.get("split") == "training" else "held-out" for row in evals}
    return f"{' or '.join(sorted(kinds)) or 'held-out'} images"


def pert_align(runs: Sequence[tuple[str, str, Series, Sequence[int]]]) -> Panel:
    """Draw the PertAlign of runs, each with a name, a colour, values by step, and the steps of alarms."""
    items: list[Item] = []
    for name, colour, values, alarms in runs:
        if values:
            items.append(Line(list(values), list(values.values()), name, colour, width=2.2))
        items += [Rule(step, colour=colour) for step in alarms]
    lowest = min((value for _, _, values, _ in runs for value in values.values()), default=0.0)
    y = Axis("PertAlign", min(0.0, lowest - 0.05), 1.02)
    return Panel(items, "PertAlign while training", STEP, y)


@register("training", "PertAlign while training, with alarms, and accuracies on the held-out slice")
@dataclass(frozen=True)
class Training(Probe[RunFolder]):
    """PertAlign of all runs in one panel, the accuracies of each run in a panel of its own.

    Attributes:
        title: A line above the picture.
    """

    title: str = ""

    def measure(self, subject: RunFolder) -> Result:
        """Read the series that the picture shows from the logs."""
        aligned = series_of(subject.read_log("metrics")).get("pert_align", {})
        evals = subject.read_log("evals")
        by_attack = accuracies(evals, "epoch")
        return {
            "n": next(iter(evals[0]["attacks"].values()))["n"] if evals else 0,
            "split": evals[0].get("split", "holdout") if evals else "holdout",
            "pert_align": {"steps": list(aligned), "values": list(aligned.values())},
            "accuracy": {
                attack: {"epochs": list(values), "values": list(values.values())}
                for attack in ATTACKS
                if (values := by_attack.get(attack))
            },
            "alarms": alarms_of(subject.read_log("events")),
        }

    def figure(self, results: Mapping[str, Result]) -> Figure:
        """Draw one panel of PertAlign for all runs, and one of accuracies per run that has any."""
        own = dict(zip(results, COLOURS * len(results), strict=False))
        lines = []
        for name, result in results.items():
            aligned, alarms = result["pert_align"], result["alarms"]
            label = f"{name}, alarm at step {', '.join(map(str, alarms))}" if alarms else name
            values = dict(zip(aligned["steps"], aligned["values"], strict=True))
            lines.append((label, own[name], values, alarms))
        panels = [pert_align(lines)]
        panels += [_of_run(name, own[name], result) for name, result in results.items() if result["accuracy"]]
        return Figure(panels, columns=2 if len(panels) == 4 else 3, width=4.6, title=self.title)

    def sentence(self, result: Result) -> str:
        """State the last PertAlign, the alarms and the last accuracies."""
        aligned, steps = result["pert_align"], ", ".join(map(str, result["alarms"]))
        last = "not logged"
        if aligned["steps"]:
            last = f"{aligned['values'][-1]:.2f} at step {aligned['steps'][-1]}"
        shares = [f"{name} {100 * own['values'][-1]:.1f} %" for name, own in result["accuracy"].items()]
        where = f"; accuracy on {watched_images([result])} {', '.join(shares)} (n = {result['n']})"
        alarms = f"alarms at step {steps}" if steps else "no alarms"
        return f"PertAlign {last}; {alarms}{where if shares else ''}"


def _of_run(name: str, colour: str, result: Result) -> Panel:
    items: list[Item] = []
    for attack, series in result["accuracy"].items():
        label = f"attacked by {attack}" if attack != "clean" else "clean"
        style, marker, _ = ATTACKS[attack]
        items.append(Line(series["epochs"], series["values"], label, colour, style, marker=marker))
    y = Axis(f"accuracy on {watched_images([result])} (n = {result['n']})", 0, 1.02, percent=True)
    return Panel(items, f"trained with {name}", Axis("epoch", whole=True), y)


@register("step-size", "the attack's step size in 1/255, with its cap", figures=(5, 12))
class StepSize(Probe[RunFolder]):
    """The length of the attack's step over the training steps, in linf in 1/255, with eps and SORA's cap."""

    def measure(self, subject: RunFolder) -> Result:
        """Read the step size from the log, eps and cap from the settings."""
        settings = subject.read_settings()
        values = series_of(subject.read_log("metrics")).get("step_size", {})
        return {
            "of": f"{settings.dataset}, {settings.model}",
            "steps": list(values),
            "values": list(values.values()),
            "threat": {"norm": settings.norm, "eps": settings.threat().eps},
            "cap": settings.set.get("sora.alpha_max"),
        }

    def figure(self, results: Mapping[str, Result]) -> Figure:
        """Draw a panel per run that has logged a step size."""
        logged = {name: result for name, result in results.items() if result["steps"]}
        if not logged:
            raise UserError("none of these runs has logged a step size")
        panels = [
            replace(_step_size(result), title=f"{name}: {result['of']}") for name, result in logged.items()
        ]
        return Figure(panels, columns=2)

    def sentence(self, result: Result) -> str:
        """State the range of the step size."""
        if not result["steps"]:
            return "no step size was logged"
        low, high = (f"{limit(result['values']) / result['threat']['eps']:.3g}" for limit in (min, max))
        return f"step size from {low} eps to {high} eps; the last is {result['values'][-1]:.4g}"


def _step_size(result: Result) -> Panel:
    eps, cap = result["threat"].get("eps"), result["cap"]
    factor, unit = (1, "") if result["threat"].get("norm") == "l2" else (255, "/255")
    items: list[Item] = []
    if result["steps"]:
        items.append(Line(result["steps"], [factor * v for v in result["values"]], "step size", BLUE))
    if items and eps:
        items.append(Rule(factor * eps, "y", f"eps = {factor * eps:.3g}{unit}", GREY, "dashed"))
    if items and eps and cap is not None and math.isfinite(cap):
        items.append(Rule(factor * eps * cap, "y", f"cap = {cap:g} eps", RED, "dashed"))
    label = f"step size (1{unit})" if unit else "step size"
    return Panel(items, "Step size of the attack", STEP, Axis(label, low=0))


def curves(run: RunRecord) -> Figure:
    """Draw all that one run has logged: accuracies, alignment, step size and loss, with its alarms."""
    series = series_of(run.logs["metrics"])
    aligned = {"pert_align": ("PertAlign", BLUE), "linearity": ("linearity coefficient", GREEN)}
    panels = [
        _accuracies(run.logs["evals"]),
        Panel(_lines(series, aligned), "PertAlign and linearity", STEP, Axis("cosine; coefficient")),
        _step_size(_logged_step_size(run, series.get("step_size", {}))),
        Panel(
            _lines(series, {"loss": ("training loss", PURPLE)}), "Loss", STEP, Axis("training loss", low=0)
        ),
    ]
    steps = alarms_of(run.logs["events"])
    rules = [Rule(step, name="alarm", colour=RED, in_legend=step == steps[0]) for step in steps]
    shown = [replace(panel, items=[*panel.items, *rules]) for panel in panels if panel.items]
    return Figure(shown, columns=2, caption="Dotted red lines mark alarms." if rules else "")


def _lines(series: Mapping[str, Series], keys: Mapping[str, tuple[str, str]]) -> list[Item]:
    return [
        Line(list(series[key]), list(series[key].values()), *look)
        for key, look in keys.items()
        if key in series
    ]


def _logged_step_size(run: RunRecord, values: Series) -> Result:
    threat = dict(run.summary.get("threat") or {})
    if values and not threat.get("eps"):
        own = run.folder.read_settings().threat()
        threat = {"norm": own.norm, "eps": own.eps}
    cap = (run.config.get("threat", {}).get("set") or {}).get("sora.alpha_max")
    return {"steps": list(values), "values": list(values.values()), "threat": threat, "cap": cap}


def _accuracies(evals: Rows) -> Panel:
    items: list[Item] = []
    by_attack = accuracies(evals)
    for attack, (style, _, colour) in ATTACKS.items():
        if values := by_attack.get(attack):
            marker: Marker = "circle" if len(values) < 40 else ""
            points = list(values), list(values.values())
            items.append(Line(*points, title_of(attack), colour, style, marker=marker))
    attacks = next((row["attacks"] for row in evals if row.get("attacks")), None)
    n = f" (n = {next(iter(attacks.values()))['n']})" if attacks else ""
    y = Axis(f"accuracy{n}", 0, 1.02, percent=True)
    return Panel(items, f"Accuracy on {watched_images(evals)}", STEP, y)
