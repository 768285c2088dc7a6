"""PertAlign over the training steps of several runs, and their accuracies on the held-out slice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sora.probes._base import Probe, Result
from sora.probes._registry import register
from sora.runs import RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#c1272d", "#0b6e99", "#3c8d40", "#8a5a00", "#6a3d9a", "#444444", "#b15928", "#1b9e77")
# A run has one colour in all panels; attacks differ in the style of their line.
ATTACKS = {"clean": (":", "o"), "fgsm": ("--", "s"), "pgd10": ("-", "D")}
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
        rows = [row for row in subject.read_log("metrics") if row["pert_align"] is not None]
        evaluations = subject.read_log("evals")
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

    def picture(self, results: Mapping[str, Result], file: Path) -> None:
        """One panel of PertAlign for all runs and one panel of accuracies per run."""
        from sora._drawing import panels, save

        figure, axes = panels(len(results) + 1, width=4.6, height=3.8, columns=5)
        figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.08)  # inches at the edges
        _draw_pert_align(axes[0], results)
        for number, (name, result) in enumerate(results.items()):
            _draw_accuracy(axes[1 + number], name, result, COLOURS[number % len(COLOURS)])
        if self.title:
            figure.suptitle(self.title)
        save(figure, file, dpi=130)

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


def _draw_pert_align(panel: Axes, results: Mapping[str, Result]) -> None:
    for number, (name, result) in enumerate(results.items()):
        colour, aligned = COLOURS[number % len(COLOURS)], result["pert_align"]
        if aligned["steps"]:
            panel.plot(
                aligned["steps"], aligned["values"], color=colour, label=f"trained with {name}", linewidth=1.8
            )
        for step in result["alarms"]:
            panel.axvline(step, color=colour, linestyle=":", linewidth=1.2)
            panel.annotate(
                f" alarm, step {step}", (step, 0.97), color=colour, fontsize=8, va="top",
                xycoords=("data", "axes fraction"),
            )  # fmt: skip
    panel.set(title="PertAlign while training", xlabel="step", ylim=(min(0.0, panel.get_ylim()[0]), 1.0))
    if any(result["pert_align"]["steps"] for result in results.values()):
        panel.legend(loc="best", frameon=False)


def _draw_accuracy(panel: Axes, name: str, result: Result, colour: str) -> None:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    for attack, series in result["accuracy"].items():
        style, marker = ATTACKS[attack]
        panel.plot(
            series["epochs"], series["values"], color=colour, linewidth=1.6, linestyle=style,
            marker=marker, markersize=3.5, label=f"attacked by {attack}" if attack != "clean" else "clean",
        )  # fmt: skip
    panel.set(title=f"trained with {name}", xlabel="epoch", ylim=(0, 1.02))
    panel.set_ylabel(f"accuracy on {WATCHED[result['split']]} (n = {result['n']})")
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.yaxis.set_major_formatter(PercentFormatter(1.0))
    if result["accuracy"]:
        panel.legend(loc="best", frameon=False)
