"""The alarm: catastrophic overfitting detected from PertAlign, which training computes anyway.

The rule: a moving average `A = 0.8 A + 0.2 PertAlign`. No alarm is raised in the first 40 updates, because
PertAlign starts near 0 for every method.

PertAlign of training batches may be low in runs that stay robust: its level depends on the method's attack
and on BatchNorm's batch statistics. Held-out images in evaluation mode therefore decide, as far as the caller
can measure them, in two stages:

- The *look*, PertAlign of a few of them, is taken when A is low.
- The *ratio* of their PGD-10 accuracy to their FGSM accuracy is measured when A and the look are both under
  0.55. The alarm is raised when it is under 0.35. If it is not, the ratio is measured again after 10 updates,
  or after 50 if it is above 0.55.

A run with `A < 0.45` and a look under 0.47 that the ratio does not call a collapse gets a *notice*: its
robustness may be declining slowly. A notice is information; only an alarm leads to an action.

Without a ratio, `A < 0.45` and a look under 0.47 raise the alarm; without a look, `A < 0.30` does.

Until update 100, a run that has not been above `clear` yet may still be climbing from 0, so that A must be
under 0.20 in all cases.

Alarm and notice end when `A > 0.50`.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from sora.errors import UserError, short

Event = Literal["ok", "notice", "alarm", "recovered"]
Measure = Callable[[], float]
# The fields that are no parameters.
_MEMORY = ("average", "lowest", "seen", "alarmed_for", "was_healthy", "noticed", "next_ratio")


@dataclass
class Guard:
    """Takes one PertAlign value per step and returns `"alarm"`, `"notice"`, `"recovered"` or `"ok"`.

    Args:
        start: The moving average below which the alarm is raised without a look.
        early_start: Replaces the other thresholds of the average in the first `early` updates, until it has
            been above `clear` once.
        watch: The average and the look below which the ratio is measured.
        collapse: The ratio below which the alarm is raised.
        suspicion: The average below which a low look gives a notice; without a ratio, an alarm.
        confirm: The look that is low in this sense.
        clear: The moving average above which an alarm or a notice ends.
        decay: Weight of the past in the moving average.
        silent: Updates at the start during which no alarm is raised.
        early: See `early_start`.
        min_batches: Updates that an alarm lasts at least.
        near: Updates from a ratio to the next one.
        far: The same, if the ratio was more than 0.2 above `collapse`.
    """

    start: float = 0.30
    early_start: float = 0.20
    watch: float = 0.55
    collapse: float = 0.35
    suspicion: float = 0.45
    confirm: float = 0.47
    clear: float = 0.50
    decay: float = 0.8
    silent: int = 40
    early: int = 100
    min_batches: int = 20
    near: int = 10
    far: int = 50
    average: float = math.nan
    lowest: float = math.nan
    seen: int = 0
    alarmed_for: int = -1  # updates since the alarm, -1 when there is none
    was_healthy: bool = False  # whether the average was ever above `clear`
    noticed: bool = False  # whether a notice was given since the average was last above `clear`
    next_ratio: int = 0  # the update from which on the ratio may be measured

    def __post_init__(self) -> None:
        for name in (each.name for each in fields(self) if each.name not in _MEMORY):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise UserError(f"guard: {name} is {short(value)}; expected a number")

    @property
    def alarmed(self) -> bool:
        """Whether there is an alarm now."""
        return self.alarmed_for >= 0

    @property
    def healthy(self) -> bool:
        """Whether the current weights may be called good: no alarm, average well above the threshold."""
        return not self.alarmed and self.seen >= self.silent and self.average > self.clear

    def update(
        self, pert_align: float, steps: int = 1, look: Measure | None = None, ratio: Measure | None = None
    ) -> Event:
        """Take the PertAlign of one update; NaN, which carries no information, is ignored.

        Args:
            pert_align: The value.
            steps: How many updates it stands for, where PertAlign is measured only now and then.
            look: Returns PertAlign of a few held-out images; called only if the alarm depends on it.
            ratio: Returns PGD-10 accuracy over FGSM accuracy of held-out images, infinity if the latter is
                too low to tell; called only if the alarm depends on it. Needs `look`.
        """
        try:
            pert_align = float(pert_align)
        except (TypeError, ValueError, RuntimeError):  # the last from a tensor of several values
            raise UserError(f"pert_align is {short(pert_align)}; expected a number") from None
        if not math.isfinite(pert_align):
            return "ok"
        first, past = math.isnan(self.average), self.decay**steps
        self.average = pert_align if first else past * self.average + (1 - past) * pert_align
        self.seen += steps
        self.was_healthy |= self.healthy
        if self.seen <= self.silent:
            return "ok"
        self.lowest = self.average if math.isnan(self.lowest) else min(self.lowest, self.average)
        self.noticed &= self.average <= self.clear
        if not self.alarmed:
            event = self._judge(look, ratio)
            self.alarmed_for = 0 if event == "alarm" else -1
            return event
        self.alarmed_for += steps
        if self.alarmed_for >= self.min_batches and self.average > self.clear:
            self.alarmed_for = -1
            return "recovered"
        return "ok"

    def _judge(self, look: Measure | None, ratio: Measure | None) -> Event:
        if look is None:
            return "alarm" if self._is_below(self.start) else "ok"
        if not self._is_below(self.suspicion if ratio is None else self.watch):
            return "ok"
        alignment = look()
        if ratio is not None and alignment < self.watch and self.seen >= self.next_ratio:
            measured = ratio()
            if measured < self.collapse:
                return "alarm"
            clearly_robust = self.collapse + 0.2 < measured < math.inf
            self.next_ratio = self.seen + (self.far if clearly_robust else self.near)
        if self.noticed or not (alignment < self.confirm and self._is_below(self.suspicion)):
            return "ok"
        self.noticed = ratio is not None
        return "notice" if self.noticed else "alarm"

    def _is_below(self, limit: float) -> bool:
        may_be_climbing = self.seen <= self.early and not self.was_healthy
        return self.average < (min(limit, self.early_start) if may_be_climbing else limit)

    def state_dict(self) -> dict[str, Any]:
        """Return everything, as plain numbers."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        for field in fields(self):
            setattr(self, field.name, state.get(field.name, field.default))
