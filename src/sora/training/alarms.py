"""What the guard's words lead to: an event, a warning, snapshots, and the way back to the last good state."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sora.training.config import TrainConfig
from sora.training.console import Console
from sora.training.guard import words
from sora.training.journal import Journal
from sora.training.snapshots import Snapshots
from sora.training.state import Checkpoints, State

MAX_ROLLBACKS = 3
_KEPT = ("attempt", "events", "best", "seconds", "images")  # a return does not undo these


@dataclass
class Alarms:
    """The guard of one run and the parts it acts on."""

    config: TrainConfig
    state: State
    journal: Journal
    console: Console
    snapshots: Snapshots
    checkpoints: Checkpoints

    def hear(self, step: int, pert_align: float) -> str | None:
        """Tell the guard, announce what it says, and return the action to take."""
        state, action = self.state, self.config.guard
        said = state.guard.update(pert_align)
        if said == "ok":
            return None
        place, average = state.place(step), state.guard.average
        if said == "alarm":
            state.events.append(place | {"action": action, "recovered": None, "returned": None})
        elif state.events:
            state.events[-1]["recovered"] = step
        if action == "off":
            return None
        self.journal.write("events", {"event": said} | place | {"average": average, "action": action})
        text = words(said, state.guard)
        self.console.warn(f"step {step} (epoch {place['epoch']}): {text} (PertAlign average {average:.2f})")
        self.snapshots.turned()
        return action if said == "alarm" else None

    def go_back(self, action: str) -> str:
        """Return to the last good state, the initial one if none ever was good; say which it is."""
        state = self.state
        kept = {name: getattr(state, name) for name in _KEPT}
        state.restore(*self.checkpoints.load(self.checkpoints.good))
        for name, value in kept.items():
            setattr(state, name, value)
        self.snapshots.returned()
        weights = "last_good" if state.step else "initial"
        self.console.warn(f"returned to the {weights.replace('_', ' ')} weights, of step {state.step}")
        state.events[-1]["returned"] = state.step
        self.journal.write("events", {"event": "returned"} | state.place() | {"action": action})
        return weights

    def is_over(self, action: str, weights: str) -> bool:
        """Whether the run ends with the weights it went back to."""
        return self.state.attempt == MAX_ROLLBACKS or (action == "stop" and weights == "last_good")

    def begin_again(self, weights: str) -> None:
        """Go on from where `go_back` led, with another data order.

        Where nothing ever was good, the order is not to blame: the attack was too strong to begin with.
        Then eps grows from 0 over the first half of the new attempt.
        """
        if weights == "initial":
            self.state.warmup = self.config.epochs / 2
        self.state.attempt += 1

    def keeps_good(self, step: int) -> bool:
        """Whether a state to go back to is kept at this step, if it is good: about ten times an epoch."""
        every = math.ceil(self.state.steps_per_epoch / 10 / self.config.log_every) * self.config.log_every
        return self.config.guard in ("stop", "rollback") and step % every == 0
