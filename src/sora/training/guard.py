"""The alarm: catastrophic overfitting seen from PertAlign alone, which training computes anyway.

The rule. A moving average `A = 0.8 A + 0.2 PertAlign`, silent for the first 40 updates because PertAlign
starts near 0 for every method. The alarm is raised when `A < 0.30` and taken back when `A > 0.40`. Up to
update 100 a run that has not been above 0.40 yet may still be climbing, and is judged at 0.20 instead. A
slower average hears a slow collapse too late, a higher line rings in trainings that end robust.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["ok", "alarm", "recovered"]


@dataclass
class Guard:
    """Takes one PertAlign value a step and says `"alarm"`, `"recovered"` or `"ok"`.

    Args:
        start: The moving average under which the alarm is raised.
        early_start: The same for a run that has never been healthy, in its first `early` updates.
        clear: The moving average over which it is taken back.
        decay: Weight of the past in the moving average.
        silent: Updates at the start during which no alarm is raised.
        early: See `early_start`.
        min_batches: Updates an alarm lasts at least.
    """

    start: float = 0.30
    early_start: float = 0.20
    clear: float = 0.40
    decay: float = 0.8
    silent: int = 40
    early: int = 100
    min_batches: int = 20
    average: float = math.nan
    lowest: float = math.nan
    seen: int = 0
    alarmed_for: int = -1  # updates since the alarm, -1 when there is none
    was_healthy: bool = False  # whether there ever was a moment to go back to

    @property
    def alarmed(self) -> bool:
        """Whether an alarm is standing."""
        return self.alarmed_for >= 0

    @property
    def line(self) -> float:
        """The average under which the next value would raise the alarm."""
        climbing = self.seen <= self.early and not self.was_healthy
        return min(self.start, self.early_start) if climbing else self.start

    @property
    def healthy(self) -> bool:
        """Whether weights of this moment may be called good: past the silence, well above the alarm."""
        return not self.alarmed and self.seen >= self.silent and self.average > self.clear

    def update(self, pert_align: float) -> Verdict:
        """Take the PertAlign of one update; a NaN, which says nothing, is passed over."""
        if not math.isfinite(pert_align):
            return "ok"
        first = math.isnan(self.average)
        self.average = pert_align if first else self.decay * self.average + (1 - self.decay) * pert_align
        self.seen += 1
        self.was_healthy |= self.healthy
        if self.seen <= self.silent:
            return "ok"
        self.lowest = self.average if math.isnan(self.lowest) else min(self.lowest, self.average)
        if self.alarmed:
            self.alarmed_for += 1
            if self.alarmed_for >= self.min_batches and self.average > self.clear:
                self.alarmed_for = -1
                return "recovered"
        elif self.average < self.line:
            self.alarmed_for = 0
            return "alarm"
        return "ok"

    def state_dict(self) -> dict[str, Any]:
        """Everything, as plain numbers."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
        for name, value in state.items():
            setattr(self, name, value)


def words(verdict: Verdict, guard: Guard) -> str:
    """What the guard has just said, for people."""
    if verdict == "recovered":
        return "PertAlign has recovered"
    if guard.was_healthy:
        return "catastrophic overfitting: robust accuracy is collapsing while FGSM accuracy looks fine"
    return "never robust so far: overfitted to its attack from the start; growing eps (--eps-warmup) may help"
