"""Choose the parameters of each rule on one half of the corpus and judge it on the other.

    python benchmarks/alarm/study.py [--picture docs/images/guard-tradeoff.png]
    python benchmarks/alarm/study.py --runs cifar10     # only the notices and alarms of each run

The halves are split by method and data set: a method that is in one half of the digits runs is in the other
half of the CIFAR-10 runs. Prints the tables of docs/results/guard.md and writes `tradeoff.csv`.
"""

import argparse
import csv
from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, get_args

import numpy as np
from corpus import HERE, read_all
from judging import AFTER, BEFORE, LOG_EVERY, Run, Score, alarm_steps, in_choice_half, looks, ratio, score
from rules import Confirmed, Current, Cusum, Fixed, Logistic, PageHinkley, Previous, Relative, Rule, Window
from scipy.stats import binomtest
from sklearn.linear_model import LogisticRegression
from truth import Kind, truth_of

from sora import methods

WITHOUT = tuple(name for name in methods.names() if not methods.info(name).has_pert_align)

Parameters = dict[str, float]


def grid(**axes: Iterable[float]) -> list[Parameters]:
    """All combinations of values."""
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


THRESHOLDS = (0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5)


def candidates(fitted: Parameters) -> dict[str, tuple[Callable[..., Rule], list[Parameters]]]:
    """Each rule with the parameters to choose from; those of the first two are given."""
    silent = (20, 40)
    return {
        "fixed threshold of 0.30": (Fixed, [{}]),
        "window of the paper's code": (Window, [{}]),
        "before the second look": (Previous, [{}]),
        "fixed threshold, chosen": (Fixed, grid(threshold=THRESHOLDS, decay=(0.8, 0.9), silent=silent)),
        "relative to the peak": (
            Relative,
            grid(share=(0.4, 0.5, 0.6, 0.7, 0.8), ceiling=(0.3, 0.4, 0.5, 1.0), decay=(0.8, 0.9)),
        ),
        "fixed threshold and a second look": (
            Confirmed,
            grid(threshold=(0.3, 0.35, 0.4, 0.45, 0.5), confirm=(0.3, 0.35, 0.4, 0.44, 0.47, 0.5)),
        ),
        "CUSUM": (Cusum, grid(limit=(1, 2, 3, 4, 6), drift=(0.05, 0.1, 0.2), level_decay=(0.95, 0.98, 0.99))),
        "Page-Hinkley": (PageHinkley, grid(limit=(1, 2, 3, 5, 8, 12), tolerance=(0.02, 0.05, 0.1, 0.2))),
        "logistic, level and slope": (
            Logistic,
            [fitted | {"limit": limit} for limit in (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)],
        ),
    }


def fit_logistic(runs: list[Run]) -> Parameters:
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
    cells = [name, share(result.detected, result.collapsed), share(result.caught, result.overfitted)]
    cells.append(share(result.falsely_alarmed, result.healthy))
    runs = max(1, result.healthy + result.collapsed)
    cells += [f"{result.false / runs:.3f}", lead(result.leads)]
    cells.append(f"{result.never_alarmed}/{result.never}")
    if parameters is not None:
        cells.append(", ".join(f"{key} {value:.3g}" for key, value in parameters.items()))
    print("| " + " | ".join(cells) + " |")


HEAD = (
    "| rule | collapses detected | overfitted from the start, detected | healthy runs with a false alarm |"
    " false alarms per run | median lead | never robust: alarmed |"
)


def compare_rules(choice: list[Run], judged: list[Run]) -> list[dict[str, Any]]:
    """Print the table of both halves; return the points of the trade-off curve."""
    chosen: dict[str, tuple[Callable[..., Rule], Parameters]] = {}
    print(f"\nchoice half\n\n{HEAD} parameters |\n" + "| --- " * 8 + "|")
    rules = candidates(fit_logistic(choice))
    for name, (cls, options) in rules.items():
        results = [score(lambda cls=cls, p=p: cls(**p), choice) for p in options]  # type: ignore[misc]
        best = min(range(len(options)), key=lambda k: results[k].cost)
        chosen[name] = cls, options[best]
        print_row(name, results[best], options[best])
    print(f"\njudged half\n\n{HEAD}\n" + "| --- " * 7 + "|")
    for name, (cls, parameters) in chosen.items():
        print_row(name, score(lambda cls=cls, p=parameters: cls(**p), judged))  # type: ignore[misc]
    print_row("sora.Guard with a look alone", score(partial(Current, 1, "look"), judged))
    current = score(Current, judged)
    print_row("sora.Guard as it is", current)
    points = [
        point(name, score(lambda cls=cls, p=p: cls(**p), judged), p, p == chosen[name][1])  # type: ignore[misc]
        for name, (cls, options) in rules.items()
        for p in options
    ]
    return [*points, point("sora.Guard as it is", current, {}, chosen=True)]


def point(name: str, result: Score, parameters: Parameters, chosen: bool) -> dict[str, Any]:
    """One rule with its parameters on the trade-off curve."""
    return {
        "rule": name,
        "chosen": chosen,
        "detected": round(result.detected / max(1, result.collapsed), 4),
        "false_alarm": round(result.falsely_alarmed / max(1, result.healthy), 4),
        "lead": result.median_lead,
        "parameters": " ".join(f"{key}={value:.4g}" for key, value in parameters.items()),
    }


def compare_looks(runs: list[Run]) -> None:
    """Print what the guard makes of a few held-out images, for methods with and without PertAlign."""
    print(f"\nsecond look\n\n{HEAD}\n" + "| --- " * 7 + "|")
    without = [pair for pair in runs if pair[0].method in WITHOUT]
    others = [pair for pair in runs if pair[0].method not in WITHOUT]
    for column, what in (("look", "PertAlign"), ("alt", "AltPertAlign")):
        for every in (5, 10, 20):
            look = partial(Current, every, "")
            print_row(f"{what} every {every} steps, no PertAlign", score(look, without, column, every))
            print_row(f"{what} every {every} steps, other methods", score(look, others, column, every))


def list_runs(runs: list[Run]) -> None:
    """Print the first and last steps of the notices and alarms that the current rule gives each run."""
    print("| run | kind | notice | alarm |\n| --- | --- | --- | --- |")
    for trace, truth in runs:
        ratios = [ratio(*pair) for pair in zip(trace["fgsm"], trace["pgd"], strict=True)]
        rows = list(
            zip(trace["step"], trace["pert_align"], looks(trace, "look", LOG_EVERY), ratios, strict=True)
        )
        found = [list(alarm_steps(rule, rows)) for rule in (Current(1, "look"), Current())]
        cells = [", ".join(f"{first}-{last}" for first, last in steps) or "none" for steps in found]
        print("| " + " | ".join([trace.name, truth.kind, *cells]) + " |")


def draw(points: list[dict[str, Any]], path: Path) -> None:
    """Detection and lead over false alarms, one colour per rule, the chosen parameters with a ring."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for name in dict.fromkeys(point["rule"] for point in points):
        mine = [point for point in points if point["rule"] == name]
        for axis, key in zip(axes, ("detected", "lead"), strict=True):
            dots = axis.scatter([p["false_alarm"] for p in mine], [p[key] for p in mine], s=14, label=name)
            ringed = [p for p in mine if p["chosen"]]
            colour = dots.get_facecolor()
            x, y = [p["false_alarm"] for p in ringed], [p[key] for p in ringed]
            axis.scatter(x, y, s=90, facecolors="none", edgecolors=colour)
    for axis, label in zip(axes, ("share of collapses detected", "median lead in steps"), strict=True):
        axis.set(xlabel="share of healthy runs with a false alarm", ylabel=label)
    axes[0].legend(fontsize=7)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, default=HERE)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--runs", metavar="DATASET", help="list the runs of this data set instead")
    args = parser.parse_args()
    runs = [(trace, truth_of(trace)) for trace in read_all(args.corpus)]
    if args.runs:
        list_runs([pair for pair in runs if pair[0].dataset == args.runs])
        return
    with_pert_align = [pair for pair in runs if pair[0].method not in WITHOUT]
    choice = [pair for pair in with_pert_align if in_choice_half(pair[0])]
    judged = [pair for pair in with_pert_align if not in_choice_half(pair[0])]
    for name, half in (("choice half", choice), ("judged half", judged)):
        kinds = [truth.kind for _, truth in half]
        counts = {kind: kinds.count(kind) for kind in get_args(Kind)}
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
