"""How a run ends when it is asked to stop from outside."""

from __future__ import annotations

import signal


class Interrupted(Exception):
    """The run was asked to stop, and its checkpoint is on disk."""

    def __init__(self, number: int, step: int, where: str = "") -> None:
        name = signal.Signals(number).name
        super().__init__(
            f"stopped by {name} {where}at step {step}; its checkpoint is kept, continue with --resume"
        )
        self.number, self.exit_code = number, 128 + number
