"""Hooks are called around every training step: the trainer's own, and those a user adds.

A hook overrides the events it needs. Events come in this order: `start`, then for each batch `before_step`,
`after_step`, at log steps `on_numbers` for every step since the last log and `on_log`, at the end of an
epoch `on_evaluation` and `after_epoch`, and `on_save_point`; `end` comes last. When the guard returns to an
earlier state, `after_epoch` and `on_save_point` of that step are left out. A hook cannot disturb training's
random numbers: the generator is seeded by position before every step.

    class Print(sora.training.Hook):
        def on_log(self, run, line):
            print(run.state.step, line["loss"])

    sora.fit(model, data, hooks=[Print()])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sora.errors import UserError

if TYPE_CHECKING:
    from sora.data import Batch
    from sora.evaluation import Evaluation
    from sora.methods import StepOutput
    from sora.training.run import Run


class Hook:
    """Does nothing; override the events you need."""

    def start(self, run: Run) -> None:
        """Training is about to begin, or to continue from a checkpoint."""

    def before_step(self, run: Run, batch: Batch) -> None:
        """A batch is about to be trained on."""

    def after_step(self, run: Run, out: StepOutput) -> None:
        """The weights were updated; the numbers are still on the device, and reading them waits for it."""

    def on_numbers(self, run: Run, step: int, numbers: dict[str, float]) -> None:
        """The numbers of one step have reached the host, in order, when a log line is due."""

    def on_log(self, run: Run, line: dict[str, Any]) -> None:
        """The means over the steps since the last log line."""

    def after_epoch(self, run: Run) -> None:
        """An epoch is complete."""

    def on_evaluation(self, run: Run, evaluation: Evaluation) -> None:
        """The weights of an epoch were evaluated."""

    def on_save_point(self, run: Run) -> None:
        """The step is complete: the state is consistent and may be saved."""

    def end(self, run: Run, summary: dict[str, Any]) -> None:
        """Training is over and its result is written."""


class Hooks:
    """Calls the hooks that override an event, in order."""

    def __init__(self, hooks: list[Hook]) -> None:
        for hook in hooks:
            if not isinstance(hook, Hook):
                raise UserError(f"hooks must be instances of sora.training.Hook, not {type(hook).__name__}")
        self._hooks = hooks
        self._listeners: dict[str, list[Any]] = {}

    def notify(self, event: str, *arguments: Any) -> None:
        """Call one event of every hook that has it."""
        if event not in self._listeners:
            overriding = [
                hook for hook in self._hooks if getattr(type(hook), event) is not getattr(Hook, event)
            ]
            self._listeners[event] = [getattr(hook, event) for hook in overriding]
        for listener in self._listeners[event]:
            listener(*arguments)
