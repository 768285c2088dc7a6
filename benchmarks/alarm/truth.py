"""What really happened in a run, from accuracy on held-out images: the classes the alarm is judged by.

Accuracies are smoothed by the median of three neighbouring measurements. A run is

- *never robust* if PGD-10 accuracy never reaches `FLOOR`, twice the chance of ten classes;
- *collapsed* at the first measurement at which PGD-10 accuracy has fallen to half of its best so far, the
  best being `FLOOR` or more, while FGSM accuracy is over twice PGD-10 accuracy;
- *healthy* otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Literal

from corpus import Trace

FLOOR = 0.2

Kind = Literal["collapsed", "healthy", "never robust"]


@dataclass(frozen=True)
class Truth:
    """The class of a run."""

    kind: Kind
    fall: int | None = None
    """The step of the collapse."""


def smooth(values: list[float]) -> list[float]:
    """The median of each value and its neighbours."""
    return [median(values[max(0, k - 1) : k + 2]) for k in range(len(values))]


def truth_of(trace: Trace) -> Truth:
    """The class of a run from its held-out accuracies."""
    measured = trace.measured("step", "fgsm", "pgd")
    fgsm, pgd = smooth([row[1] for row in measured]), smooth([row[2] for row in measured])
    best = 0.0
    for (step, _, _), single, several in zip(measured, fgsm, pgd, strict=True):
        best = max(best, several)
        if best >= FLOOR and several <= best / 2 and single > 2 * several:
            return Truth("collapsed", int(step))
    return Truth("healthy" if best >= FLOOR else "never robust")
