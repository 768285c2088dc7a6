"""The curves of runs over their training steps: PertAlign, accuracies, the attack's step size, the loss."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sora.errors import UserError
from sora.figures import BLUE, GREEN, GREY, ORANGE, PALETTE, PURPLE, RED, Axis, Figure, Line, Panel, Rule
from sora.probes._base import Probe, Result, register
from sora.probes._records import Rows, RunRecord, alarms_of, title_of
from sora.runs import RunFolder
from sora.threat import threat

COLOURS = (RED, BLUE, *PALETTE[2:])  # `sora demo` compares FGSM with SORA, whose colour is blue everywhere
# In the picture of several runs a run has one colour, and attacks differ in the style of their line.
ATTACKS: Mapping[str, Any] = {  # style, marker, and the colour in the picture of one run
    "clean": ("dotted", "circle", GREY),
    "fgsm": ("dashed", "square", ORANGE),
    "pgd10": ("solid", "diamond", BLUE),
}
STEP = Axis("step", whole=True)
NOT_SERIES = ("step", "epoch", "attempt", "n", "lr", "split")  # fields of a log line that are not drawn
Series = dict[int, float]  # by step or epoch


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
    return series_of([{"step": row[by], **row["accuracy"]} for row in evals if row.get("accuracy")])


def listed(values: Series, by: str = "steps") -> Result:
    """Return a series as it is stored."""
    return {by: list(values), "values": list(values.values())}


def curve(values: Series, name: str, colour: str, **look: Any) -> Line:
    """Draw a series."""
    return Line(list(values), list(values.values()), name, colour, **look)


def watched_images(evals: Iterable[Mapping[str, Any]]) -> str:
    """Return which images the accuracies of a log belong to: without held-out ones, training images."""
    kinds = {"training" if row.get("split") == "training" else "held-out" for row in evals}
    return f"{' or '.join(sorted(kinds)) or 'held-out'} images"


def alarms_text(steps: Sequence[int]) -> str:
    """Return the steps of a run's alarms in words."""
    return f"alarms at step {', '.join(map(str, steps))}" if steps else "no alarms"


def pert_align(runs: Sequence[tuple[str, str, Result, Sequence[int]]]) -> Panel:
    """Draw the PertAlign of runs, each with a name, a colour, steps with values, and the steps of alarms."""
    items: list[Line | Rule] = []
    for name, colour, series, alarms in runs:
        if series["steps"]:
            items.append(Line(series["steps"], series["values"], name, colour, width=2.2))
        items += [Rule(step, colour=colour) for step in alarms]
    lowest = min((value for _, _, series, _ in runs for value in series["values"]), default=0.0)
    return Panel(items, "PertAlign while training", STEP, Axis("PertAlign", min(0.0, lowest - 0.05), 1.02))


@register("training", "PertAlign while training, with alarms, and accuracies on the held-out slice")
@dataclass(frozen=True)
class Training(Probe[RunFolder]):
    """PertAlign of all runs in one panel, the accuracies of each run in a panel of its own."""

    title: str = ""  # a line above the picture

    def measure(self, subject: RunFolder) -> Result:
        """Read the series that the picture shows from the logs."""
        evals = subject.read_log("evals")
        by_attack = accuracies(evals, "epoch")
        return {
            "n": next(iter(evals[0]["attacks"].values()))["n"] if evals else 0,
            "split": evals[0].get("split", "holdout") if evals else "holdout",
            "pert_align": listed(series_of(subject.read_log("metrics")).get("pert_align", {})),
            "accuracy": {key: listed(by_attack[key], "epochs") for key in ATTACKS if key in by_attack},
            "alarms": alarms_of(subject.read_log("events")),
        }

    def figure(self, results: Mapping[str, Result]) -> Figure:
        """Draw one panel of PertAlign for all runs, and one of accuracies per run that has any."""
        lines, panels = [], []
        for (name, result), colour in zip(results.items(), itertools.cycle(COLOURS), strict=False):
            alarms = result["alarms"]
            label = f"{name}, alarm at step {', '.join(map(str, alarms))}" if alarms else name
            lines.append((label, colour, result["pert_align"], alarms))
            panels += [_of_run(name, colour, result)] if result["accuracy"] else []
        columns = 2 if len(panels) == 3 else 3
        return Figure([pert_align(lines), *panels], columns=columns, width=4.6, title=self.title)

    def sentence(self, result: Result) -> str:
        """State the last PertAlign, the alarms and the last accuracies."""
        values, steps = result["pert_align"]["values"], result["pert_align"]["steps"]
        last = f"{values[-1]:.2f} at step {steps[-1]}" if steps else "not logged"
        shares = [f"{name} {100 * own['values'][-1]:.1f} %" for name, own in result["accuracy"].items()]
        where = f"; accuracy on {watched_images([result])} {', '.join(shares)} (n = {result['n']})"
        return f"PertAlign {last}; {alarms_text(result['alarms'])}{where if shares else ''}"


def _of_run(name: str, colour: str, result: Result) -> Panel:
    items = []
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
        config = subject.read_config()
        own = {"of": f"{config['data']['dataset']}, {config['network']['model']}"}
        return own | _step_sizes(config, series_of(subject.read_log("metrics")))

    def figure(self, results: Mapping[str, Result]) -> Figure:
        """Draw a panel per run that has logged a step size."""
        titles = {f"{name}: {own['of']}": own for name, own in results.items() if own["steps"]}
        if not titles:
            raise UserError("none of these runs has logged a step size")
        return Figure([replace(_step_size(own), title=title) for title, own in titles.items()], columns=2)

    def sentence(self, result: Result) -> str:
        """State the range of the step size."""
        if not result["steps"]:
            return "no step size was logged"
        low, high = (f"{limit(result['values']) / result['threat']['eps']:.3g}" for limit in (min, max))
        return f"step size from {low} eps to {high} eps; the last is {result['values'][-1]:.4g}"


def _step_sizes(config: Mapping[str, Any], series: Mapping[str, Series]) -> Result:
    own = config["threat"]
    about = {"norm": own["norm"], "eps": threat(own["norm"], own["eps"]).eps}
    cap = (own.get("set") or {}).get("sora.alpha_max")
    return listed(series.get("step_size", {})) | {"threat": about, "cap": cap}


def _step_size(result: Result) -> Panel:
    eps, cap = result["threat"]["eps"], result["cap"]
    factor, unit = (1, "") if result["threat"]["norm"] == "l2" else (255, "/255")
    values, capped = [factor * value for value in result["values"]], cap is not None and math.isfinite(cap)
    items: list[Line | Rule] = [
        Line(result["steps"], values, "step size", BLUE),
        Rule(factor * eps, "y", f"eps = {factor * eps:.3g}{unit}", style="dashed"),
        *([Rule(factor * eps * cap, "y", f"cap = {cap:g} eps", RED, "dashed")] if capped else []),
    ]
    label = "step size (1/255)" if unit else "step size"
    return Panel(items if result["steps"] else [], "Step size of the attack", STEP, Axis(label, low=0))


def curves(run: RunRecord) -> Figure:
    """Draw all that one run has logged: accuracies, alignment, step size and loss, with its alarms."""
    series = series_of(run.logs["metrics"])
    names = {"pert_align": ("PertAlign", BLUE), "linearity": ("linearity coefficient", GREEN)}
    aligned = [curve(series[key], *look) for key, look in names.items() if key in series]
    loss = [curve(series["loss"], "training loss", PURPLE)] if "loss" in series else []
    panels = [
        _accuracies(run.logs["evals"]),
        Panel(aligned, "PertAlign and linearity", STEP, Axis("cosine; coefficient")),
        _step_size(_step_sizes(run.config, series)),
        Panel(loss, "Loss", STEP, Axis("training loss", low=0)),
    ]
    steps = alarms_of(run.logs["events"])
    rules = [Rule(step, name="alarm", colour=RED, in_legend=step == steps[0]) for step in steps]
    shown = [replace(panel, items=[*panel.items, *rules]) for panel in panels if panel.items]
    return Figure(shown, columns=2, caption="Dotted red lines mark alarms." if rules else "")


def _accuracies(evals: Rows) -> Panel:
    by_attack = accuracies(evals)
    items = [
        curve(values, title_of(attack), colour, style=style, marker="circle" if len(values) < 40 else "")
        for attack, (style, _, colour) in ATTACKS.items()
        if (values := by_attack.get(attack))
    ]
    attacks = next((row["attacks"] for row in evals if row.get("attacks")), None)
    n = f" (n = {next(iter(attacks.values()))['n']})" if attacks else ""
    y = Axis(f"accuracy{n}", 0, 1.02, percent=True)
    return Panel(items, f"Accuracy on {watched_images(evals)}", STEP, y)
