"""Methods whose numbers a test decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sora import methods
from sora.settings import Settings
from sora.training import Hook, train

Script = Callable[[int, int], float]  # (attempt, step) -> PertAlign
CALM, COLLAPSED = 0.8, 0.0


class Scripted(methods.info("fgsm").cls):  # type: ignore[misc]
    """FGSM that reports the PertAlign of a script."""

    script: Script = staticmethod(lambda attempt, step: CALM)
    place = (0, 0)

    def step(self, *arguments: Any, **options: Any) -> Any:
        attempt, done = self.place
        value = torch.tensor(type(self).script(attempt, done + 1))
        return super().step(*arguments, **options)._replace(pert_align=value)


class Unlucky(methods.info("fgsm").cls):  # type: ignore[misc]
    """FGSM whose loss is not a number at its fifth step."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def step(self, *arguments: Any, **options: Any) -> Any:
        self.calls += 1
        out = super().step(*arguments, **options)
        return out._replace(loss=torch.tensor(torch.nan)) if self.calls == 5 else out


class Follow(Hook):
    """Passes the position in the run to the scripted method."""

    def before_step(self, run: Any, batch: Any) -> None:
        run.state.method.place = (run.state.attempt, run.state.step)


def scripted_look(alarms: Any) -> float:
    """Return what the second look of a scripted run sees: the script's value for this step."""
    state = alarms._run.state
    return Scripted.script(state.attempt, state.step)


def scripted_run(settings: Settings, *hooks: Hook, quiet: bool = True) -> dict[str, Any]:
    """Train with the scripted method and return the summary."""
    return train(settings, hooks=[Follow(), *hooks], quiet=quiet).summary


def collapse_from(first: int, attempts: int = 99) -> Script:
    """Calm, then collapsed from a step on, in the first so many attempts."""
    return lambda attempt, step: COLLAPSED if attempt < attempts and step >= first else CALM
