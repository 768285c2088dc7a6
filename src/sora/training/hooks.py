"""Hooks are a user's own code that training calls around every step, after its own work for each event.

A hook overrides the events it needs. Events come in this order: `start`, then for each batch `before_step`,
`after_step`, at log steps `on_numbers` for every step since the last log and `on_log`, at the end of an
epoch `on_evaluation` and `after_epoch`, and `on_save_point`; `end` follows the last step, and `close` comes
in every case, also after an error or a signal. `on_event` comes when the guard raises an alarm, ends it or
returns to an earlier state; then `after_epoch` and `on_save_point` of that step are left out. A hook cannot
disturb training's random numbers: the generator is seeded by position before every step.

    class Print(sora.training.Hook):
        def on_log(self, run, line):
            print(run.state.step, line["loss"])

    sora.fit(model, data, hooks=[Print()])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sora._registry import imported
from sora.errors import UserError, short

if TYPE_CHECKING:
    from sora.data import Batch
    from sora.evaluation import Evaluation
    from sora.methods import StepOutput
    from sora.training.run import Run


class Hook:
    """Does nothing; override the events you need."""

    def start(self, run: Run) -> None:
        """Prepare for training, which is about to begin or to continue from a checkpoint."""

    def before_step(self, run: Run, batch: Batch) -> None:
        """Use a batch before it is trained on."""

    def after_step(self, run: Run, out: StepOutput) -> None:
        """Use a step's numbers; they are still on the device, and reading them waits for it."""

    def on_numbers(self, run: Run, step: int, numbers: dict[str, float]) -> None:
        """Use the numbers of one step on the host; called for each step, in order, when a log line is due."""

    def on_log(self, run: Run, line: dict[str, Any]) -> None:
        """Use the means over the steps since the last log line."""

    def after_epoch(self, run: Run) -> None:
        """Act at the end of an epoch."""

    def on_evaluation(self, run: Run, evaluation: Evaluation) -> None:
        """Use the evaluation of an epoch's weights."""

    def on_event(self, run: Run, line: dict[str, Any]) -> None:
        """Use a line of `events.jsonl`, such as an alarm of the guard."""

    def on_save_point(self, run: Run) -> None:
        """Act after a complete step: the state is consistent, and saved if a checkpoint was due."""

    def end(self, run: Run, summary: dict[str, Any]) -> None:
        """Act after training, when its result is written."""

    def close(self, run: Run) -> None:
        """Release what the hook holds; called last, however training ended."""


def load_hook(name: str) -> Hook:
    """Return a new hook of the class that `package.module:Class` names; importing it runs its code."""
    build = imported("hook", name)
    try:
        return build()  # type: ignore[no-any-return]
    except Exception as error:  # a user's own code may raise anything
        reason = f"{type(error).__name__}: {short(str(error))}"
        raise UserError(f"hook {name!r} cannot be created: {reason}") from error
