"""Candidate rules: each takes one PertAlign value per update and returns whether there is an alarm now.

Some also use the second look at a few held-out images; at most steps there is none, which is NaN.

All of them ignore NaN, raise no alarm in their first `silent` updates and keep an alarm for at least `HOLD`
updates. They compare PertAlign or a fast moving average of it with a fixed threshold or with the run's own
level.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from sora.training import Guard

HOLD = 20


class Rule(Protocol):
    """What the study asks of a rule."""

    def update(self, pert_align: float, look: float, ratio: float) -> bool:
        """Take one value, and the look and the ratio that may be measured now; is there an alarm now?"""


@dataclass
class Detector:
    """What the rules share: the silent start, and an alarm that lasts at least `HOLD` updates."""

    silent: int = 40
    seen: int = field(default=0, init=False)
    held: int = field(default=-1, init=False)
    look: float = field(default=math.nan, init=False)

    def update(self, pert_align: float, look: float = math.nan, ratio: float = math.nan) -> bool:
        """Take one value, and the look that may be taken now; whether there is an alarm now."""
        if not math.isnan(pert_align):
            self.seen += 1
            self.look = look
            self.take(pert_align)
            if self.held >= 0:
                self.held += 1
                if self.held >= HOLD and self.clears():
                    self.held = -1
            elif self.seen > self.silent and self.fires():
                self.held = 0
        return self.held >= 0

    def take(self, value: float) -> None:
        """Use one value."""
        raise NotImplementedError

    def fires(self) -> bool:
        """Whether an alarm begins."""
        raise NotImplementedError

    def clears(self) -> bool:
        """Whether an alarm may end."""
        return not self.fires()


@dataclass
class Fixed(Detector):
    """A moving average under a fixed threshold, the first rule of this project."""

    threshold: float = 0.30
    decay: float = 0.9
    margin: float = 0.1
    average: float = field(default=math.nan, init=False)

    def take(self, value: float) -> None:
        """Move the average."""
        self.average = moved(self.average, value, self.decay)

    def fires(self) -> bool:
        """Under the threshold."""
        return self.average < self.threshold

    def clears(self) -> bool:
        """Well above the threshold."""
        return self.average > self.threshold + self.margin


@dataclass
class Confirmed(Fixed):
    """A moving average under a fixed threshold, and a second look that is low too."""

    threshold: float = 0.45
    decay: float = 0.8
    confirm: float = 0.45
    margin: float = 0.05

    def fires(self) -> bool:
        """Both are low."""
        return self.average < self.threshold and self.look < self.confirm


@dataclass
class Window(Detector):
    """The drop over a window, as in the paper's code: mean of its first quarter minus mean of its last."""

    drop: float = 0.5
    width: int = 200
    silent: int = 0

    def __post_init__(self) -> None:
        self.values: deque[float] = deque(maxlen=self.width)

    def take(self, value: float) -> None:
        """Move the window."""
        self.values.append(value)

    def fires(self) -> bool:
        """The mean of the first quarter is `drop` or more above that of the last."""
        quarter = self.width // 4
        if len(self.values) < self.width:
            return False
        values = list(self.values)
        return (sum(values[:quarter]) - sum(values[-quarter:])) / quarter >= self.drop


@dataclass
class Previous:
    """The rule before the second look: PertAlign of training batches alone."""

    start: float = 0.30
    early_start: float = 0.20
    clear: float = 0.40
    decay: float = 0.8
    silent: int = 40
    early: int = 100

    def __post_init__(self) -> None:
        self.average, self.seen, self.held, self.was_healthy = math.nan, 0, -1, False

    def update(self, pert_align: float, look: float = math.nan, ratio: float = math.nan) -> bool:
        """Take one value; whether there is an alarm now."""
        if math.isnan(pert_align):
            return self.held >= 0
        self.average = moved(self.average, pert_align, self.decay)
        self.seen += 1
        self.was_healthy |= self.held < 0 and self.seen >= self.silent and self.average > self.clear
        climbing = self.seen <= self.early and not self.was_healthy
        if self.seen > self.silent:
            if self.held >= 0:
                self.held += 1
                if self.held >= HOLD and self.average > self.clear:
                    self.held = -1
            elif self.average < (min(self.start, self.early_start) if climbing else self.start):
                self.held = 0
        return self.held >= 0


@dataclass
class Relative(Detector):
    """A fast average that has fallen under a share of its own highest value, and under a ceiling."""

    share: float = 0.6
    ceiling: float = 0.5
    decay: float = 0.8
    average: float = field(default=math.nan, init=False)
    peak: float = field(default=0.0, init=False)

    def take(self, value: float) -> None:
        """Move the average and the highest average after the silent start."""
        self.average = moved(self.average, value, self.decay)
        if self.seen >= self.silent // 2:
            self.peak = max(self.peak, self.average)

    def fires(self) -> bool:
        """Under the share of the peak and under the ceiling."""
        return self.average < min(self.ceiling, self.share * self.peak)


@dataclass
class Cusum(Detector):
    """CUSUM of the shortfall of PertAlign from the run's own slow average."""

    limit: float = 2.0
    drift: float = 0.1
    level_decay: float = 0.98
    level: float = field(default=math.nan, init=False)
    total: float = field(default=0.0, init=False)

    def take(self, value: float) -> None:
        """Add this value's shortfall; the level stands still during an alarm."""
        if self.seen <= self.silent or math.isnan(self.level):
            self.level = moved(self.level, value, 0.8)
            return
        self.total = max(0.0, self.total + self.level - self.drift - value)
        self.total = min(self.total, 2 * self.limit)
        if self.held < 0:
            self.level = moved(self.level, value, self.level_decay)

    def fires(self) -> bool:
        """The shortfalls add up to more than the limit."""
        return self.total > self.limit


@dataclass
class PageHinkley(Detector):
    """Page-Hinkley: the shortfall from the mean of all values since the silent start."""

    limit: float = 3.0
    tolerance: float = 0.05
    mean: float = field(default=0.0, init=False)
    count: int = field(default=0, init=False)
    total: float = field(default=0.0, init=False)
    lowest: float = field(default=0.0, init=False)

    def take(self, value: float) -> None:
        """Add this value's shortfall."""
        if self.seen <= self.silent // 2:
            return
        self.count += 1
        self.mean += (value - self.mean) / self.count
        self.total += self.mean - self.tolerance - value
        self.lowest = min(self.lowest, self.total)

    def fires(self) -> bool:
        """The sum has risen by more than the limit from its lowest value."""
        return self.total - self.lowest > self.limit


@dataclass
class Logistic(Detector):
    """A logistic rule on level and slope: a fast average, and its distance to a slow one."""

    limit: float = 0.5
    intercept: float = 0.0
    of_level: float = 0.0
    of_slope: float = 0.0
    average: float = field(default=math.nan, init=False)
    slow: float = field(default=math.nan, init=False)

    def take(self, value: float) -> None:
        """Move both averages."""
        self.average, self.slow = moved(self.average, value, 0.8), moved(self.slow, value, 0.95)

    @property
    def features(self) -> tuple[float, float]:
        """Level and slope."""
        return self.average, self.average - self.slow

    def fires(self) -> bool:
        """The probability of a collapse is over the limit."""
        level, slope = self.features
        score = self.intercept + self.of_level * level + self.of_slope * slope
        return score > math.log(self.limit / (1 - self.limit))


@dataclass
class Current:
    """The rule of `sora.Guard` as it is now; each value stands for `steps` updates.

    `uses` is what it may measure: `ratio` (with the look, as in `sora train`), `look`, or nothing.
    """

    steps: int = 1
    uses: str = "ratio"

    def __post_init__(self) -> None:
        self.guard, self.updates, self.ratios, self.notices = Guard(), 0, 0, 0

    def update(self, pert_align: float, look: float = math.nan, ratio: float = math.nan) -> bool:
        """Take one value, and the look and the ratio that may be measured now; is there an alarm now?"""

        def measure() -> float:
            self.ratios += 1
            return ratio

        event = self.guard.update(
            pert_align,
            self.steps,
            (lambda: look) if self.uses else None,
            measure if self.uses == "ratio" else None,
        )
        self.updates += 1
        self.notices += event == "notice"
        return self.guard.alarmed


def moved(average: float, value: float, decay: float) -> float:
    """A moving average that starts at its first value."""
    return value if math.isnan(average) else decay * average + (1 - decay) * value
