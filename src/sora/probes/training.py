"""The curves of runs over their training steps: PertAlign, accuracies, the attack's step size, the loss."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sora.errors import UserError
from sora.figures import ATTACKS, Axis, Figure, Item, Line, Look, Panel, Rule, colour_of, looks
from sora.probes._base import Probe, Result, register
from sora.probes._records import Rows, RunRecord, alarms_of, method_of, title_of
from sora.runs import RunFolder
from sora.threat import threat

FEW = 3  # runs whose results fit into a title
STEP = Axis("step", low=0, whole=True)
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


def accuracies(evals: Rows) -> dict[str, Series]:
    """Return the accuracy under each attack over the steps of a log."""
    return series_of([{"step": row["step"], **row["accuracy"]} for row in evals if row.get("accuracy")])


def listed(values: Series) -> Result:
    """Return a series as it is stored."""
    return {"steps": list(values), "values": list(values.values())}


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


def finding(name: str, accuracy: Mapping[str, Result], alarms: Sequence[int]) -> str:
    """Say what became of a run on the images that its training watched."""
    last = {attack: own["values"][-1] for attack, own in accuracy.items() if own["values"]}
    when = f"alarm at step {alarms[0]}" if alarms else "no alarm"
    if "pgd10" not in last:
        return f"{name}: {when}"
    single, strong = last.get("fgsm", 0.0), f"{100 * last['pgd10']:.0f} % under PGD-10"
    if last["pgd10"] < single / 4 and single >= last.get("clean", single) / 2:  # as in a verdict
        return f"{name} collapses: {100 * single:.0f} % under FGSM, {strong}; {when}"
    return f"{name} {'ends at' if alarms else 'keeps'} {strong}; {when}"


def overlaid(
    label: str, runs: Mapping[str, tuple[Look, Result, Sequence[int]]], y: Axis, **look: Any
) -> Panel:
    """Draw one series of some runs, by their names, with a dotted line at each alarm."""
    items: list[Item] = []
    for name, (own, series, alarms) in runs.items():
        if series["steps"]:
            items.append(Line(series["steps"], series["values"], name, own.colour, own.style, **look))
        items += [
            Rule(step, name=f"alarm of {name}", colour=own.colour, in_legend=step == alarms[0])
            for step in alarms
        ]
    return Panel(items, "", STEP, replace(y, label=label))


@register("training", "PertAlign while training, with alarms, and accuracies on the held-out slice")
class Training(Probe[RunFolder]):
    """PertAlign of all runs in one panel, the accuracies of each run in a panel of its own."""

    def measure(self, subject: RunFolder) -> Result:
        """Read the series that the picture shows from the logs."""
        own = _watched(subject.read_log("evals"), subject.read_log("events"), subject.read_config())
        return own | {"pert_align": listed(series_of(subject.read_log("metrics")).get("pert_align", {}))}

    def figure(self, results: Mapping[str, Result]) -> Figure:
        """Draw one panel of PertAlign for all runs, and one of accuracies per run that has any."""
        drawn = looks({name: result.get("method", "") for name, result in results.items()})
        runs = {name: (drawn[name], own["pert_align"], own["alarms"]) for name, own in results.items()}
        ends = {name: own["pert_align"]["values"][-1:] for name, own in results.items()}
        texts = [f"{name} {values[0]:.2f}" for name, values in ends.items() if values]
        title = f"PertAlign at the end: {', '.join(texts)}" if 0 < len(texts) <= FEW else "PertAlign"
        aligned = replace(overlaid("PertAlign", runs, Axis(high=1.02), width=2.2), title=title)
        series = [curve for own in results.values() for curve in own["accuracy"].values()]
        top = max((value for own in series for value in own["values"]), default=1.0)
        y = Axis(low=0, high=min(1.02, 1.1 * top) or None, percent=True)
        panels = [
            _with_alarms(_of_run(name, own, y), own) for name, own in results.items() if own["accuracy"]
        ]
        columns = 2 if len(panels) == 3 else 3
        return Figure([aligned, *panels], columns=columns, width=4.8, height=4.1)

    def sentence(self, result: Result) -> str:
        """State the last PertAlign, the alarms and the last accuracies."""
        values, steps = result["pert_align"]["values"], result["pert_align"]["steps"]
        last = f"{values[-1]:.2f} at step {steps[-1]}" if steps else "not logged"
        shares = [f"{name} {100 * own['values'][-1]:.1f} %" for name, own in result["accuracy"].items()]
        where = f"; accuracy on {watched_images([result])} {', '.join(shares)} (n = {result['n']})"
        return f"PertAlign {last}; {alarms_text(result['alarms'])}{where if shares else ''}"


def _watched(evals: Rows, events: Rows, config: Mapping[str, Any]) -> Result:
    by_attack = accuracies(evals)
    attacks = next((row["attacks"] for row in evals if row.get("attacks")), {"": {"n": 0}})
    return {
        "method": method_of(config),
        "n": next(iter(attacks.values()))["n"],
        "split": evals[0].get("split", "holdout") if evals else "holdout",
        "accuracy": {key: listed(by_attack[key]) for key in ATTACKS if key in by_attack},
        "alarms": alarms_of(events),
    }


def _of_run(name: str, result: Result, y: Axis) -> Panel:
    colour, accuracy, alarms = colour_of(result.get("method", "")), result["accuracy"], result["alarms"]
    items: list[Item] = [
        Line(own["steps"], own["values"], title_of(attack), colour, ATTACKS[attack], marker="circle")
        for attack, own in accuracy.items()
    ]
    label = f"accuracy on {watched_images([result])} (n = {result['n']})"
    return Panel(items, finding(name, accuracy, alarms), STEP, replace(y, label=label))


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
        shown = {name: own for name, own in results.items() if own["steps"]}
        if not shown:
            raise UserError("none of these runs has logged a step size")
        titles = {name: f"{name} ({own['of']}): {_range(own)}" for name, own in shown.items()}
        return Figure(
            [replace(_step_size(own), title=titles[name]) for name, own in shown.items()], columns=2
        )

    def sentence(self, result: Result) -> str:
        """State the range of the step size."""
        if not result["steps"]:
            return "no step size was logged"
        return f"{_range(result)}; the last is {result['values'][-1]:.4g}"


def _range(result: Result) -> str:
    values = [value / result["threat"]["eps"] for value in result["values"]]
    low, high = (f"{limit(values):.2g}" for limit in (min, max))
    if low == high:
        return f"step size of {low} eps throughout"
    text = f"step size from {low} to {high} eps"
    if result["cap"] is None:
        return text
    capped = sum(value > 0.99 * result["cap"] for value in values) / len(values)
    return f"{text}, {100 * capped:.0f} % at its cap"


def _step_sizes(config: Mapping[str, Any], series: Mapping[str, Series]) -> Result:
    own = config["threat"]
    about = {"norm": own["norm"], "eps": threat(own["norm"], own["eps"]).eps}
    cap = (own.get("set") or {}).get("sora.alpha_max")
    return listed(series.get("step_size", {})) | {"threat": about, "cap": cap, "method": method_of(config)}


def _step_size(result: Result) -> Panel:
    eps, cap = result["threat"]["eps"], result["cap"]
    factor, unit = (1, "") if result["threat"]["norm"] == "l2" else (255, "/255")
    values, capped = [factor * value for value in result["values"]], cap is not None and math.isfinite(cap)
    items: list[Line | Rule] = [
        Line(result["steps"], values, "step size", colour_of(result.get("method", ""))),
        Rule(factor * eps, "y", f"eps = {factor * eps:.3g}{unit}", style="dashed"),
        *([Rule(factor * eps * cap, "y", f"cap = {cap:g} eps")] if capped else []),
    ]
    label = "step size (1/255)" if unit else "step size"
    return Panel(items if result["steps"] else [], "Step size of the attack", STEP, Axis(label, low=0))


def curves(run: RunRecord) -> Figure:
    """Draw all that one run has logged: accuracies, alignment, step size and loss, with its alarms."""
    series = series_of(run.logs["metrics"])
    colour = colour_of(method_of(run.config))
    names: Any = {"pert_align": ("PertAlign", "solid"), "linearity": ("linearity coefficient", "dashed")}
    aligned = [
        curve(series[key], name, colour, style=style) for key, (name, style) in names.items() if key in series
    ]
    loss = [curve(series["loss"], "training loss", colour)] if "loss" in series else []
    own = _watched(run.logs["evals"], run.logs["events"], run.config)
    panels = [
        _of_run("The run", own, Axis(low=0, high=1.02, percent=True)),
        Panel(aligned, "PertAlign and linearity", STEP, Axis("cosine; coefficient")),
        _step_size(_step_sizes(run.config, series)),
        Panel(loss, "Loss", STEP, Axis("training loss", low=0)),
    ]
    shown = [_with_alarms(panel, own) for panel in panels if panel.items]
    return Figure(shown, columns=2)


def _with_alarms(panel: Panel, result: Result) -> Panel:
    steps, colour = result["alarms"], colour_of(result.get("method", ""))
    rules = [Rule(step, name="alarm", colour=colour, in_legend=step == steps[0]) for step in steps]
    return replace(panel, items=[*panel.items, *rules])
