"""What the tests of training share: methods with scripted numbers, and hooks that disturb a run."""

import os
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sora import methods
from sora.settings import Settings
from sora.training import Hook, train

BuildSettings = Callable[..., Settings]
Script = Callable[[int, int], float]  # (attempt, step) -> PertAlign
CALM, COLLAPSED = 0.8, 0.0
FILES = ("model.safetensors", "metrics.jsonl", "evals.jsonl", "events.jsonl")


def linear(num_classes: int) -> nn.Module:
    """The fastest model, for runs of many steps."""
    return nn.Sequential(nn.Flatten(), nn.Linear(256, num_classes))


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


class Killed(BaseException):
    """Stands for `kill -9`: no code of the package catches it."""


class At(Hook):
    """Calls an action with the run and its batch before the step that follows `step` completed ones."""

    def __init__(self, step: int, action: Callable[[Any, Any], object]) -> None:
        self.step, self.action = step, action

    def before_step(self, run: Any, batch: Any) -> None:
        if run.state.step == self.step:
            self.action(run, batch)


def kill_at(step: int, attempts: Container[int] = range(9)) -> Hook:
    """End the process, so to speak, before the step after `step` of one of these attempts."""

    def kill(run: Any, batch: Any) -> None:
        if run.state.attempt in attempts:
            raise Killed

    return At(step, kill)


def train_killed_at(settings: Settings, steps: list[int], *hooks: Hook) -> None:
    """Train to the end, dying once before each of the given steps."""
    for step in steps:
        with pytest.raises(Killed):
            train(settings, hooks=[*hooks, kill_at(step)], quiet=True)
    train(settings, hooks=list(hooks), quiet=True)


def kill_at_link(monkeypatch: Any, number: int) -> None:
    """Kill between the rename of a step's checkpoint and its second name."""
    original = Path.hardlink_to

    def hardlink_to(link: Path, target: Path) -> None:
        if Path(target).name.endswith(f"{number:08d}.safetensors"):
            raise Killed
        original(link, target)

    monkeypatch.setattr(Path, "hardlink_to", hardlink_to)


class SignalAfter(Hook):
    """Sends this process a signal after so many steps of it."""

    def __init__(self, steps: int, number: int) -> None:
        self.left, self.number = steps, number

    def after_step(self, run: Any, out: Any) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), self.number)


class Recorder(Hook):
    """Keeps what a function returns for the run after every step."""

    def __init__(self, what: Callable[[Any], Any]) -> None:
        self.what, self.values = what, []

    def after_step(self, run: Any, out: Any) -> None:
        self.values.append(self.what(run))


def weights_of(run: Any) -> dict[str, torch.Tensor]:
    """Copy the weights and statistics of a run's model."""
    return {name: tensor.clone() for name, tensor in run.state.model.state_dict().items()}


def contents(settings: Settings) -> dict[str, bytes]:
    """Read what a killed run must have in common with one that was not."""
    return {name: (settings.folder() / name).read_bytes() for name in FILES}
