"""Hooks that disturb a run at a chosen step, as kills, signals and broken weights would."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sora.training import Hook


class Killed(BaseException):
    """Stands for `kill -9`: no code of the package catches it."""


class At(Hook):
    """Calls an action with the run before the step that follows `step` completed ones."""

    def __init__(self, step: int, action: Callable[[Any], None]) -> None:
        self.step, self.action = step, action

    def before_step(self, run: Any, batch: Any) -> None:
        if run.state.step == self.step:
            self.action(run)


def kill_at(step: int) -> Hook:
    """End the process, so to speak, before the step after `step`."""

    def kill(run: Any) -> None:
        raise Killed

    return At(step, kill)


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


def poison_at(step: int) -> Hook:
    """Break the weights before a step."""

    def poison(run: Any) -> None:
        with torch.no_grad():
            next(run.state.model.parameters()).fill_(torch.nan)

    return At(step, poison)


class Recorder(Hook):
    """Keeps what a function says about the run after every step."""

    def __init__(self, what: Callable[[Any], Any]) -> None:
        self.what, self.values = what, []

    def after_step(self, run: Any, out: Any) -> None:
        self.values.append(self.what(run))
