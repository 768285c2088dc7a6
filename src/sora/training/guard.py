"""The alarm: catastrophic overfitting detected from PertAlign, which training computes anyway.

The rule: a moving average `A = 0.8 A + 0.2 PertAlign`. No alarm is raised in the first 40 updates, because
PertAlign starts near 0 for every method.

With a second look, which is PertAlign of a few held-out images in evaluation mode, the alarm is raised when
`A < 0.45` and the look is under 0.47. The look is taken only when A asks for it. It is needed because
PertAlign of training batches may be low in runs that stay robust: the level depends on the method's attack
and on BatchNorm's batch statistics.

Without a look A alone decides: the alarm is raised when `A < 0.30`.

Until update 100, a run that has not been above `clear` yet may still be climbing from 0, so that A must be
under 0.20 in both cases.

The alarm is withdrawn when `A > 0.50`.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from sora.errors import UserError, short

Event = Literal["ok", "alarm", "recovered"]
Look = Callable[[], float]
_MEMORY = ("average", "lowest", "seen", "alarmed_for", "was_healthy")  # the fields that are no parameters


@dataclass
class Guard:
    """Takes one PertAlign value per step and returns `"alarm"`, `"recovered"` or `"ok"`.

    Args:
        start: The moving average below which the alarm is raised without a second look.
        early_start: Replaces `start` and `suspicion` in the first `early` updates, until the average has been
            above `clear` once.
        suspicion: The moving average below which a second look is taken.
        confirm: The look below which it confirms the alarm.
        clear: The moving average above which the alarm is withdrawn.
        decay: Weight of the past in the moving average.
        silent: Updates at the start during which no alarm is raised.
        early: See `early_start`.
        min_batches: Updates that an alarm lasts at least.
    """

    start: float = 0.30
    early_start: float = 0.20
    suspicion: float = 0.45
    confirm: float = 0.47
    clear: float = 0.50
    decay: float = 0.8
    silent: int = 40
    early: int = 100
    min_batches: int = 20
    average: float = math.nan
    lowest: float = math.nan
    seen: int = 0
    alarmed_for: int = -1  # updates since the alarm, -1 when there is none
    was_healthy: bool = False  # whether the average was ever above `clear`

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

    def update(self, pert_align: float, steps: int = 1, look: Look | None = None) -> Event:
        """Take the PertAlign of one update; NaN, which carries no information, is ignored.

        Args:
            pert_align: The value.
            steps: How many updates it stands for, where PertAlign is measured only now and then.
            look: Returns PertAlign of a few held-out images; called only if the alarm depends on it.
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
        if self.alarmed:
            self.alarmed_for += steps
            if self.alarmed_for >= self.min_batches and self.average > self.clear:
                self.alarmed_for = -1
                return "recovered"
        elif self._collapsing(look):
            self.alarmed_for = 0
            return "alarm"
        return "ok"

    def _collapsing(self, look: Look | None) -> bool:
        limit = self.start if look is None else self.suspicion
        if self.seen <= self.early and not self.was_healthy:
            limit = min(limit, self.early_start)
        return self.average < limit and (look is None or look() < self.confirm)

    def state_dict(self) -> dict[str, Any]:
        """Return everything, as plain numbers."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        for field in fields(self):
            setattr(self, field.name, state[field.name])
