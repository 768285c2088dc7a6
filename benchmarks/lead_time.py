"""How many steps before the fall of PGD accuracy each metric reacts to catastrophic overfitting.

    sora train ... --log-every 1 --monitor-every 1 --monitor gradalign,aae,kl,elle,altpertalign,fgsm,pgd
    python benchmarks/lead_time.py RUN [RUN ...] [--around 60]

Series are smoothed by the median of five measurements. The fall is the first measurement at which PGD-10
accuracy on the held-out slice is half its best or less. Only `--around` steps before and after it count.
A metric's level before is its median over the first ten of these measurements, its level after over the
last ten (of logarithms for KL and ELLE, which have no range). It has reacted when it has gone a quarter
of the way and stays there for three measurements, and turned when it has gone half of it. Positive leads
come before the fall.
"""

import argparse
import json
import math
from pathlib import Path
from statistics import median
from typing import Any

from sora.runs import RunFolder
from sora.training import Guard

METRICS = ("pert_align", "gradalign", "altpertalign", "elle", "aae", "kl")
EDGE, STAY = 10, 3


def smooth(values: list[float]) -> list[float]:
    """The median of each value and the four before it."""
    return [median(values[max(0, k - 4) : k + 1]) for k in range(len(values))]


def fall_of_pgd(measurements: list[dict[str, Any]]) -> int | None:
    """The step of the first measurement after the best at which PGD accuracy is half of it or less."""
    pgd = smooth([measurement["pgd"] for measurement in measurements])
    best = pgd.index(max(pgd))
    return next((measurements[k]["step"] for k in range(best, len(pgd)) if pgd[k] <= pgd[best] / 2), None)


def reaction(measurements: list[dict[str, Any]], name: str, share: float) -> int | None:
    """The step at which a metric has gone `share` of the way from its level before to its level after."""
    values = [
        math.log10(max(measurement[name], 1e-12)) if name in ("kl", "elle") else measurement[name]
        for measurement in measurements
    ]
    before, after = median(values[:EDGE]), median(values[-EDGE:])
    if before == after:
        return None
    gone = [(value - before) / (after - before) >= share for value in smooth(values)]
    return next((measurements[k]["step"] for k in range(len(gone)) if all(gone[k : k + STAY])), None)


def first_alarm(lines: list[dict[str, Any]]) -> int | None:
    """The step at which the guard, as it is now, raises its first alarm."""
    guard = Guard()
    return next((line["step"] for line in lines if guard.update(line["pert_align"]) == "alarm"), None)


def leads(folder: Path, around: int) -> dict[str, Any]:
    """Lead in steps of the guard's alarm and of every metric, at a quarter and at half of the way."""
    measurements = RunFolder(folder).read_log("monitors")
    fall = fall_of_pgd(measurements)
    if fall is None:
        return {"run": folder.name, "fall": None}
    alarm = first_alarm(RunFolder(folder).read_log("metrics"))
    found: dict[str, Any] = {"run": folder.name, "fall": fall, "alarm": alarm and fall - alarm}
    measurements = [measurement for measurement in measurements if abs(measurement["step"] - fall) <= around]
    for name in METRICS:
        steps = [reaction(measurements, name, share) for share in (0.25, 0.5)]
        found[name] = [None if step is None else fall - step for step in steps]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--around", type=int, default=60, help="steps before and after the fall that count")
    args = parser.parse_args()
    print(json.dumps([leads(run, args.around) for run in args.runs], indent=2))


if __name__ == "__main__":
    main()
