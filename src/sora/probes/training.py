"""PertAlign over the training steps of several runs, and their accuracies on the held-out slice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sora.figures import BLUE, PALETTE, RED, Axis, Figure, Item, Line, Marker, Panel, Rule, Style
from sora.probes._base import Probe, Result, register
from sora.runs import RunFolder

COLOURS = (RED, BLUE, *PALETTE[2:])  # `sora demo` compares FGSM with SORA, whose colour is blue everywhere
# A run has one colour in all panels; attacks differ in the style of their line.
ATTACKS: Mapping[str, tuple[Style, Marker]] = {
    "clean": ("dotted", "circle"),
    "fgsm": ("dashed", "square"),
    "pgd10": ("solid", "diamond"),
}
WATCHED = {"holdout": "held-out images", "training": "training images"}


@register("training", "PertAlign while training, with alarms, and accuracies on the held-out slice")
@dataclass(frozen=True)
class Training(Probe[RunFolder]):
    """PertAlign of all runs in one panel, the accuracies of each run in a panel of its own.

    Attributes:
        title: A line above the picture.
    """

    title: str = ""

    def measure(self, subject: RunFolder) -> Result:
        """The series that the picture shows, read from the logs."""
        # After a rollback, a step or an epoch has several rows: the last one counts.
        steps = {row["step"]: row for row in subject.read_log("metrics") if row["pert_align"] is not None}
        epochs = {row["epoch"]: row for row in subject.read_log("evals")}
        rows, evaluations = ([by[key] for key in sorted(by)] for by in (steps, epochs))
        accuracy = {}
        for attack in ATTACKS:
            own = [row for row in evaluations if attack in row["accuracy"]]
            if own:
                accuracy[attack] = {
                    "epochs": [row["epoch"] for row in own],
                    "values": [row["accuracy"][attack] for row in own],
                }
        return {
            "n": next(iter(evaluations[0]["attacks"].values()))["n"] if evaluations else 0,
            "split": evaluations[0].get("split", "holdout") if evaluations else "holdout",
            "pert_align": {
                "steps": [row["step"] for row in rows],
                "values": [row["pert_align"] for row in rows],
            },
            "accuracy": accuracy,
            "alarms": [row["step"] for row in subject.read_log("events") if row["event"] == "alarm"],
        }

    def figure(self, results: Mapping[str, Result]) -> Figure:
        """One panel of PertAlign for all runs, one panel of accuracies per run that has any."""
        runs = [
            (name, result, COLOURS[number % len(COLOURS)])
            for number, (name, result) in enumerate(results.items())
        ]
        panels = [_pert_align(runs), *(_accuracy(*run) for run in runs if run[1]["accuracy"])]
        return Figure(panels, columns=2 if len(panels) == 4 else 3, width=4.6, title=self.title)

    def sentence(self, result: Result) -> str:
        """The last PertAlign, the alarms and the last accuracies."""
        aligned = result["pert_align"]
        alarms = (
            f"alarms at step {', '.join(map(str, result['alarms']))}" if result["alarms"] else "no alarms"
        )
        last = (
            f"{aligned['values'][-1]:.2f} at step {aligned['steps'][-1]}"
            if aligned["steps"]
            else "not logged"
        )
        shares = ", ".join(
            f"{name} {100 * own['values'][-1]:.1f} %" for name, own in result["accuracy"].items()
        )
        accuracy = f"; accuracy on {WATCHED[result['split']]} {shares} (n = {result['n']})" if shares else ""
        return f"PertAlign {last}; {alarms}{accuracy}"


def _pert_align(runs: Sequence[tuple[str, Result, str]]) -> Panel:
    items: list[Item] = []
    for name, result, colour in runs:
        aligned, alarms = result["pert_align"], result["alarms"]
        label = f"{name}, alarm at step {', '.join(map(str, alarms))}" if alarms else name
        if aligned["steps"]:
            items.append(Line(aligned["steps"], aligned["values"], label, colour, width=2.2))
        items += [Rule(step, colour=colour) for step in alarms]
    lowest = min((min(result["pert_align"]["values"], default=0.0) for _, result, _ in runs), default=0.0)
    y = Axis("PertAlign", min(0.0, lowest - 0.05), 1.02)
    return Panel(items, "PertAlign while training", Axis("step", whole=True), y)


def _accuracy(name: str, result: Result, colour: str) -> Panel:
    items: list[Item] = []
    for attack, series in result["accuracy"].items():
        label = f"attacked by {attack}" if attack != "clean" else "clean"
        style, marker = ATTACKS[attack]
        items.append(Line(series["epochs"], series["values"], label, colour, style, marker=marker))
    y = Axis(f"accuracy on {WATCHED[result['split']]} (n = {result['n']})", 0, 1.02, percent=True)
    return Panel(items, f"trained with {name}", Axis("epoch", whole=True), y)
