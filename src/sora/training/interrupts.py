"""How a run ends when it is asked to stop from outside."""

from __future__ import annotations

import signal

KEPT = "its checkpoint is kept, continue with --resume"


class Interrupted(Exception):
    """The run was asked to stop, and its checkpoint is on disk."""

    def __init__(self, number: int, step: int, where: str = "", result: str = KEPT) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name} {where}at step {step}; {result}")
        self.number, self.step, self.where, self.exit_code = number, step, where, 128 + number
