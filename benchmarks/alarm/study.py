"""Choose the parameters of each rule on one half of the corpus and judge it on the other.

    python benchmarks/alarm/study.py [--picture docs/images/guard-tradeoff.png]

The halves are split by method and data set: a method that is in one half of the digits runs is in the other
half of the CIFAR-10 runs. Prints the tables of docs/results/guard.md and writes `tradeoff.csv`.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from corpus import HERE, Trace, read_all
from rules import Current, Cusum, Fixed, Logistic, PageHinkley, Previous, Relative, Rule, Window
from scipy.stats import binomtest
from sklearn.linear_model import LogisticRegression
from truth import Truth, truth_of

CHOICE_DIGITS = ("fgsm", "n-fgsm", "gradalign", "sora", "atas", "free", "pgd-2")
WITHOUT = ("benign", "nuat", "trades")  # no PertAlign: judged by the second look
BEFORE, AFTER = 60, 20  # an alarm belongs to a collapse if it stands in this window of steps around it

Make = Callable[[], Rule]
Parameters = dict[str, float]


@dataclass(frozen=True)
class Outcome:
    """What a rule did in one run."""

    alarms: int
    detected: bool
    lead: int | None
    """Steps from the beginning of the alarm to the collapse."""


@dataclass(frozen=True)
class Score:
    """What a rule did in many runs."""

    detected: int
    collapsed: int
    accused: int
    """Healthy runs with an alarm."""
    alarms: int
    """Alarms in healthy runs."""
    healthy: int
    never_alarmed: int
    never: int
    leads: tuple[int, ...]

    @property
    def cost(self) -> tuple[float, float]:
        """To be minimised: share of errors of both kinds, then minus the median lead."""
        missed = 1 - self.detected / max(1, self.collapsed)
        return missed + self.accused / max(1, self.healthy), -min(self.median_lead, BEFORE)

    @property
    def median_lead(self) -> float:
        """Over detected collapses."""
        return median(self.leads) if self.leads else math.nan


def in_choice_half(trace: Trace) -> bool:
    """Whether a run belongs to the half on which parameters are chosen."""
    return (trace.method in CHOICE_DIGITS) == (trace.dataset == "digits")


def alarm_steps(rule: Rule, values: Iterable[tuple[float, float]]) -> Iterator[tuple[int, int]]:
    """First and last step of each alarm, from pairs of step and value."""
    begin: int | None = None
    step = 0.0
    for step, value in values:
        alarmed = rule.update(value)
        if alarmed and begin is None:
            begin = int(step)
        elif not alarmed and begin is not None:
            yield begin, int(step) - 1
            begin = None
    if begin is not None:
        yield begin, int(step)


def judge(rule: Rule, trace: Trace, truth: Truth, values: list[float]) -> Outcome:
    """Run a rule over one run."""
    alarms = list(alarm_steps(rule, zip(trace["step"], values, strict=True)))
    if truth.fall is None:
        return Outcome(len(alarms), False, None)
    fall = truth.fall
    fitting = [first for first, last in alarms if first <= fall + AFTER and last >= fall - BEFORE]
    return Outcome(len(alarms), bool(fitting), fall - fitting[0] if fitting else None)


def held(trace: Trace, column: str, every: int) -> list[float]:
    """A column measured now and then as one value per step: the last one stands until the next."""
    values, last = [], math.nan
    for step, value in zip(trace["step"], trace[column], strict=True):
        if step % every == 0 and not math.isnan(value):
            last = value
        values.append(last)
    return values


def score(make: Make, runs: list[tuple[Trace, Truth]], column: str = "", every: int = 1) -> Score:
    """Judge a rule over many runs, by PertAlign or by another column."""
    outcomes = []
    for trace, truth in runs:
        values = held(trace, column, every) if column else trace["pert_align"]
        outcomes.append((truth.kind, judge(make(), trace, truth, values)))
    fallen = [outcome for kind, outcome in outcomes if kind == "collapsed"]
    healthy = [outcome for kind, outcome in outcomes if kind == "healthy"]
    never = [outcome for kind, outcome in outcomes if kind == "never robust"]
    return Score(
        sum(outcome.detected for outcome in fallen),
        len(fallen),
        sum(outcome.alarms > 0 for outcome in healthy),
        sum(outcome.alarms for outcome in healthy),
        len(healthy),
        sum(outcome.alarms > 0 for outcome in never),
        len(never),
        tuple(outcome.lead for outcome in fallen if outcome.lead is not None),
    )


def grid(**axes: Iterable[float]) -> list[Parameters]:
    """All combinations of values."""
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


THRESHOLDS = (0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5)


def candidates(fitted: Parameters) -> dict[str, tuple[Callable[..., Rule], list[Parameters]]]:
    """Each rule with the parameters to choose from; those of the first two are given."""
    silent = (20, 40)
    return {
        "fixed threshold of the specification": (Fixed, [{}]),
        "window of the paper's code": (Window, [{}]),
        "version 0.2": (Previous, [{}]),
        "fixed threshold, chosen": (Fixed, grid(threshold=THRESHOLDS, decay=(0.8, 0.9), silent=silent)),
        "relative to the peak": (
            Relative,
            grid(share=(0.4, 0.5, 0.6, 0.7, 0.8), ceiling=(0.3, 0.4, 0.5, 1.0), decay=(0.8, 0.9)),
        ),
        "CUSUM": (Cusum, grid(limit=(1, 2, 3, 4, 6), drift=(0.05, 0.1, 0.2), level_decay=(0.95, 0.98, 0.99))),
        "Page-Hinkley": (PageHinkley, grid(limit=(1, 2, 3, 5, 8, 12), tolerance=(0.02, 0.05, 0.1, 0.2))),
        "logistic, level and slope": (
            Logistic,
            [fitted | {"limit": limit} for limit in (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)],
        ),
    }


def fit_logistic(runs: list[tuple[Trace, Truth]]) -> Parameters:
    """Weights of the logistic rule: steps around a collapse against steps of healthy phases."""
    rows, labels = [], []
    for trace, truth in runs:
        rule = Logistic()
        for step, value in zip(trace["step"], trace["pert_align"], strict=True):
            rule.update(value)
            near = truth.fall is not None and abs(step - truth.fall) <= AFTER
            early = truth.fall is not None and step < truth.fall - BEFORE
            if step > rule.silent and (near or early or truth.kind == "healthy"):
                rows.append(rule.features)
                labels.append(near)
    model = LogisticRegression(class_weight="balanced").fit(np.array(rows), np.array(labels))
    of_level, of_slope = (float(value) for value in model.coef_[0])
    return {"intercept": float(model.intercept_[0]), "of_level": of_level, "of_slope": of_slope}


def share(count: int, total: int) -> str:
    """A share with its 95 % interval (Wilson)."""
    if not total:
        return "-"
    interval = binomtest(count, total).proportion_ci(method="wilson")
    return f"{count}/{total} ({100 * interval.low:.0f} to {100 * interval.high:.0f} %)"


def lead(leads: tuple[int, ...]) -> str:
    """The median lead with its 95 % bootstrap interval."""
    if not leads:
        return "-"
    draws = np.random.default_rng(0).choice(leads, (2000, len(leads)))
    low, high = np.percentile(np.median(draws, axis=1), (2.5, 97.5))
    return f"{median(leads):g} ({low:g} to {high:g})"


def print_row(name: str, result: Score, parameters: Parameters | None = None) -> None:
    """One row of a table."""
    cells = [name, share(result.detected, result.collapsed), share(result.accused, result.healthy)]
    cells += [f"{result.alarms / max(1, result.healthy):.2f}", lead(result.leads)]
    cells.append(f"{result.never_alarmed}/{result.never}")
    if parameters is not None:
        cells.append(", ".join(f"{key} {value:.3g}" for key, value in parameters.items()))
    print("| " + " | ".join(cells) + " |")


HEAD = (
    "| rule | collapses detected | healthy runs accused | alarms per healthy run | median lead |"
    " never robust: alarmed |"
)


def compare_rules(choice: list[Any], judged: list[Any]) -> list[dict[str, Any]]:
    """Print the table of both halves; return the points of the trade-off curve."""
    points: list[dict[str, Any]] = []
    chosen: dict[str, tuple[Callable[..., Rule], Parameters]] = {}
    print(f"\nchoice half\n\n{HEAD} parameters |\n" + "| --- " * 7 + "|")
    for name, (cls, options) in candidates(fit_logistic(choice)).items():
        results = [score(lambda cls=cls, p=p: cls(**p), choice) for p in options]  # type: ignore[misc]
        best = min(range(len(options)), key=lambda k: results[k].cost)
        chosen[name] = cls, options[best]
        print_row(name, results[best], options[best])
    print(f"\njudged half\n\n{HEAD}\n" + "| --- " * 6 + "|")
    for name, (cls, parameters) in chosen.items():
        print_row(name, score(lambda cls=cls, p=parameters: cls(**p), judged))  # type: ignore[misc]
    print_row("sora.Guard as it is", score(Current, judged))
    for name, (cls, options) in candidates(fit_logistic(choice)).items():
        for parameters in options:
            result = score(lambda cls=cls, p=parameters: cls(**p), judged)  # type: ignore[misc]
            detected = result.detected / max(1, result.collapsed)
            accused = result.accused / max(1, result.healthy)
            points.append(
                {"rule": name, "chosen": parameters == chosen[name][1]}
                | {"detected": round(detected, 4), "accused": round(accused, 4), "lead": result.median_lead}
                | {"parameters": " ".join(f"{key}={value:.4g}" for key, value in parameters.items())}
            )
    return points


def compare_looks(runs: list[tuple[Trace, Truth]]) -> None:
    """Print what the guard makes of a few held-out images, for methods with and without PertAlign."""
    print(f"\nsecond look\n\n{HEAD}\n" + "| --- " * 6 + "|")
    without = [pair for pair in runs if pair[0].method in WITHOUT]
    others = [pair for pair in runs if pair[0].method not in WITHOUT]
    for column, what in (("look", "PertAlign"), ("alt", "AltPertAlign")):
        for every in (5, 10, 20):
            print_row(f"{what} every {every} steps, no PertAlign", score(Current, without, column, every))
            print_row(f"{what} every {every} steps, other methods", score(Current, others, column, every))


def draw(points: list[dict[str, Any]], path: Path) -> None:
    """Detection and lead over false alarms, one colour per rule, the chosen parameters with a ring."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for name in dict.fromkeys(point["rule"] for point in points):
        mine = [point for point in points if point["rule"] == name]
        for axis, key in zip(axes, ("detected", "lead"), strict=True):
            dots = axis.scatter([p["accused"] for p in mine], [p[key] for p in mine], s=14, label=name)
            ringed = [p for p in mine if p["chosen"]]
            colour = dots.get_facecolor()
            x, y = [p["accused"] for p in ringed], [p[key] for p in ringed]
            axis.scatter(x, y, s=90, facecolors="none", edgecolors=colour)
    for axis, label in zip(axes, ("share of collapses detected", "median lead in steps"), strict=True):
        axis.set(xlabel="share of healthy runs accused", ylabel=label)
    axes[0].legend(fontsize=7)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, default=HERE)
    parser.add_argument("--picture", type=Path)
    args = parser.parse_args()
    runs = [(trace, truth_of(trace)) for trace in read_all(args.corpus)]
    with_pert_align = [pair for pair in runs if pair[0].method not in WITHOUT]
    choice = [pair for pair in with_pert_align if in_choice_half(pair[0])]
    judged = [pair for pair in with_pert_align if not in_choice_half(pair[0])]
    for name, half in (("choice half", choice), ("judged half", judged)):
        kinds = [truth.kind for _, truth in half]
        counts = {kind: kinds.count(kind) for kind in ("collapsed", "healthy", "never robust")}
        print(f"{name}: {len(half)} runs, " + ", ".join(f"{count} {kind}" for kind, count in counts.items()))
    points = compare_rules(choice, judged)
    compare_looks(runs)
    with (args.corpus / "tradeoff.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, list(points[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(points)
    if args.picture:
        draw(points, args.picture)


if __name__ == "__main__":
    main()
