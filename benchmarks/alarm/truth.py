"""What really happened in a run, from accuracy on held-out images: the classes the alarm is judged by.

Accuracies are smoothed by the median of all measurements within `SPAN` steps: one of 64 images is noisy.
A run is

- *collapsed* at the first measurement at which PGD-10 accuracy has fallen to half of its best so far, the
  best being `FLOOR` or more, while FGSM accuracy is over twice PGD-10 accuracy;
- *overfitted from the start* if PGD-10 accuracy never reaches `FLOOR` and the last weights are overfitted;
- *never robust* if PGD-10 accuracy never reaches `FLOOR` and they are not;
- *healthy* otherwise.

Weights are called overfitted by the rule of the verdict: PGD-10 accuracy under a quarter of FGSM accuracy,
which is `FLOOR` or more. A healthy run may be overfitted for a while, for example before it has become
robust. An alarm that stands at such a measurement is not false.
"""

from dataclasses import dataclass
from statistics import median
from typing import Literal

from corpus import Trace

FLOOR = 0.15  # one and a half times the chance of ten classes
SPAN = 10

Kind = Literal["collapsed", "overfitted", "never robust", "healthy"]


@dataclass(frozen=True)
class Truth:
    """The class of a run."""

    kind: Kind
    fall: int | None = None
    """The step of the collapse."""
    overfitted: tuple[int, ...] = ()
    """The steps of measurements at which the weights were overfitted."""


def smooth(steps: list[int], values: list[float]) -> list[float]:
    """The median of all values within `SPAN` steps of each step."""
    pairs = list(zip(steps, values, strict=True))
    return [median(value for other, value in pairs if abs(other - step) <= SPAN) for step in steps]


def truth_of(trace: Trace) -> Truth:
    """The class of a run from its held-out accuracies."""
    measured = trace.measured("step", "fgsm", "pgd")
    steps = [int(row[0]) for row in measured]
    fgsm, pgd = (smooth(steps, [row[k] for row in measured]) for k in (1, 2))
    best, fall, overfitted = 0.0, None, []
    for step, single, several in zip(steps, fgsm, pgd, strict=True):
        best = max(best, several)
        if fall is None and best >= FLOOR and several <= best / 2 and single > 2 * several:
            fall = step
        if single >= FLOOR and several < single / 4:
            overfitted.append(step)
    return Truth(_kind(best, fall, bool(overfitted) and overfitted[-1] == steps[-1]), fall, tuple(overfitted))


def _kind(best: float, fall: int | None, ends_overfitted: bool) -> Kind:
    if best < FLOOR:
        return "overfitted" if ends_overfitted else "never robust"
    return "healthy" if fall is None else "collapsed"
