"""Every method, killed in the middle of an epoch by the training loop's own rules, continues bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sora.training.config import TrainConfig, defaults

from sora import methods
from sora.methods import Method, StepOutput
from sora.training.loop import train

HYPER: dict[str, dict[str, Any]] = {
    "atas": {"atas.warmup": 1, "atas.reset_every": 2},
    "elle": {"elle.adaptive": True},
    "free": {"free.replays": 3},
    "nuat": {"nuat.ramp": True, "nuat.alternate": True},
    "aaer": {"aaer.ramp_epochs": 20},
    "pgd": {"pgd.steps": 3},
    "pgd-10": {"pgd.steps": 3},
    "trades": {"trades.steps": 3},
}


def run(name: str, folder: Path) -> None:
    table = defaults("digits", name)
    table |= {"epochs": 3, "limit_train": 150, "limit_test": 30, "holdout": 20, "batch_size": 64, "width": 4}
    table |= {"augment": ("crop:2", "flip"), "attacks": ("clean",), "checkpoint_every": 1, "log_every": 1}
    table |= {"out": str(folder), "guard": "off", "snapshots": False, "threads": 1, "device": "cpu"}
    table["set"] = {**table.get("set", {}), **HYPER.get(name, {})}
    train(TrainConfig.build(table), quiet=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", methods.names())
def test_a_killed_run_continues_bit_for_bit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(name, tmp_path / "whole")
    calls, original = 0, Method.step

    def dying(self: Method, *args: Any, **known: Any) -> StepOutput:
        nonlocal calls
        calls += 1
        if calls == 5 * self.updates:  # three batches an epoch: in the middle of the second
            raise MemoryError("killed")
        return original(self, *args, **known)

    with monkeypatch.context() as patch:
        patch.setattr(Method, "step", dying)
        with pytest.raises(MemoryError):
            run(name, tmp_path / "killed")
    assert not (tmp_path / "killed" / "model.safetensors").exists()
    run(name, tmp_path / "killed")
    for file in ("model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "killed" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
