"""What really happened in a run, from accuracy on held-out images: the classes the alarm is judged by.

Accuracies are smoothed by the median of five neighbouring measurements: one of 64 images is noisy. A run is

- *never robust* if PGD-10 accuracy never reaches `FLOOR`, twice the chance of ten classes;
- *collapsed* at the first measurement at which PGD-10 accuracy has fallen to half of its best so far, the
  best being `FLOOR` or more, while FGSM accuracy is over twice PGD-10 accuracy;
- *healthy* otherwise.

A healthy run may be overfitted for a while, for example before it has become robust. Its weights are called
overfitted by the rule of the verdict: PGD-10 accuracy under a quarter of FGSM accuracy, which is `FLOOR` or
more. An alarm that stands at such a measurement is not false.
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
    overfitted: tuple[int, ...] = ()
    """The steps of measurements at which the weights were overfitted."""


def smooth(values: list[float]) -> list[float]:
    """The median of each value and the two on either side."""
    return [median(values[max(0, k - 2) : k + 3]) for k in range(len(values))]


def truth_of(trace: Trace) -> Truth:
    """The class of a run from its held-out accuracies."""
    measured = trace.measured("step", "fgsm", "pgd")
    steps = [int(row[0]) for row in measured]
    fgsm, pgd = smooth([row[1] for row in measured]), smooth([row[2] for row in measured])
    best, fall, overfitted = 0.0, None, []
    for step, single, several in zip(steps, fgsm, pgd, strict=True):
        best = max(best, several)
        if fall is None and best >= FLOOR and several <= best / 2 and single > 2 * several:
            fall = step
        if single >= FLOOR and several < single / 4:
            overfitted.append(step)
    kind: Kind = "never robust" if best < FLOOR else "healthy" if fall is None else "collapsed"
    return Truth(kind, fall, tuple(overfitted))
