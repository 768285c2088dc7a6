"""Which weights are kept for probes, and that they are those of their moment."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from sora import Linf, methods
from sora.training.snapshots import Snapshots
from sora.training.state import State


@pytest.fixture
def state() -> State:
    model = nn.Linear(1, 1)
    return State(model, torch.optim.SGD(model.parameters()), methods.create("fgsm", Linf(0.1)), ema=None)


def log_steps(kept: Snapshots, state: State, steps: range, turns: tuple[int, ...] = ()) -> None:
    """Log at each of the steps, whose weights are all equal to the step's number."""
    for state.step in steps:
        with torch.no_grad():
            state.model.weight.fill_(state.step)
        if state.step in turns:
            kept.turned()
        kept.logged(state)


def found(folder: Path) -> dict[str, float]:
    return {file.stem: float(load_file(file)["weight"]) for file in sorted(folder.glob("*"))}


def test_the_weights_before_at_and_after_an_alarm(tmp_path: Path, state: State) -> None:
    log_steps(Snapshots(tmp_path, True), state, range(10, 60, 10), turns=(30,))
    assert found(tmp_path) == {"step-00000020-0": 20, "step-00000030-0": 30, "step-00000040-0": 40}


def test_nothing_after_a_return_belongs_to_the_alarm_before_it(tmp_path: Path, state: State) -> None:
    kept = Snapshots(tmp_path, True)
    log_steps(kept, state, range(10, 30, 10), turns=(20,))
    kept.returned()
    state.attempt = 1
    log_steps(kept, state, range(10, 60, 10))
    assert list(found(tmp_path)) == ["step-00000010-0", "step-00000020-0"]


def test_a_calm_run_keeps_what_it_is_told_to(tmp_path: Path, state: State) -> None:
    kept = Snapshots(tmp_path, True)
    log_steps(kept, state, range(10, 30, 10))
    kept.write(state)
    assert found(tmp_path) == {"step-00000020-0": 20}


def test_none_are_kept_when_off(tmp_path: Path, state: State) -> None:
    kept = Snapshots(tmp_path / "none", False)
    log_steps(kept, state, range(10, 60, 10), turns=(30,))
    kept.write(state)
    assert not (tmp_path / "none").exists()
