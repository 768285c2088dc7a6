"""Ctrl-C while a run evaluates: it ends at once and loses nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from torch import Tensor, nn

from sora import attacks
from sora.attacks import Attack
from sora.runs import RunFolder
from sora.settings import Settings
from sora.threat import Threat
from sora.training import Interrupted, train
from tests.training.disturbances import SignalAfter

BuildSettings = Callable[..., Settings]
FILES = ("model.safetensors", "metrics.jsonl", "evals.jsonl", "events.jsonl")


class Interrupting:
    """Sends this process a signal at one of its calls."""

    at = 0
    calls = 0
    survived = 0


@pytest.fixture
def interrupting(_own_methods: None) -> Any:
    """An attack `hours` that is interrupted while it runs."""

    @attacks.register("hours", "is interrupted")
    @dataclass(frozen=True)
    class Hours(Attack):
        def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int = 0) -> Tensor:
            Interrupting.calls += 1
            if Interrupting.calls == Interrupting.at:
                os.kill(os.getpid(), signal.SIGINT)
                for _ in range(1000):  # the handler runs between two of these
                    model(x[:1])
                Interrupting.survived += 1
            return x

    Interrupting.calls = Interrupting.survived = Interrupting.at = 0
    return Interrupting


def contents(settings: Settings) -> dict[str, bytes]:
    return {name: (settings.folder() / name).read_bytes() for name in FILES}


@pytest.mark.parametrize(("call", "step"), [(2, 6), (4, 9)], ids=["in an epoch's", "in the final"])
def test_an_evaluation_ends_at_once_and_the_run_continues_there(
    call: int, step: int, settings: BuildSettings, interrupting: Any
) -> None:
    whole, broken = (
        settings(out=name, attacks=("clean", "hours"), checkpoint_every=0) for name in ("whole", "broken")
    )
    train(whole, quiet=True)
    interrupting.calls, interrupting.at = 0, call
    with pytest.raises(
        Interrupted, match=f"SIGINT during the evaluation at step {step}.*--resume"
    ) as stopped:
        train(broken, quiet=True)
    assert stopped.value.exit_code == 130
    assert interrupting.survived == 0
    newest = RunFolder(broken.folder()).checkpoints.newest_first()[0]
    assert newest.name == f"step-0-{step:08d}.safetensors"
    interrupting.at = 0
    train(broken, quiet=True)
    assert contents(broken) == contents(whole)


def test_a_signal_in_an_epochs_last_step_does_not_wait_for_the_evaluation(
    settings: BuildSettings, interrupting: Any
) -> None:
    whole, broken = (
        settings(out=name, attacks=("clean", "hours"), checkpoint_every=0) for name in ("whole", "broken")
    )
    train(whole, quiet=True)
    interrupting.calls = 0
    with pytest.raises(Interrupted, match="at step 3"):
        train(broken, hooks=[SignalAfter(3, signal.SIGTERM)], quiet=True)
    assert interrupting.calls == 0
    train(broken, quiet=True)
    assert contents(broken) == contents(whole)
