"""Every method, killed in the middle of an epoch, continues bit for bit."""

from pathlib import Path
from typing import Any

import pytest

from sora import methods
from sora.settings import Request
from sora.training import Hook, train
from tests.training.helpers import Killed, kill_at

HYPER: dict[str, dict[str, Any]] = {
    "atas": {"atas.warmup": 1, "atas.reset_every": 2},
    "elle": {"elle.adaptive": True},
    "fgsm-mep": {"fgsm-mep.reset_every": 2},
    "fgsm-law": {"fgsm-law.theta": 1.1},
    "fgsm-lass": {"fgsm-lass.every": 2, "fgsm-lass.step_lr": 0.1},
    "free": {"free.replays": 3},
    "liet": {"liet.every": 2},
    "nuat": {"nuat.ramp": True, "nuat.alternate": True},
    "aaer": {"aaer.ramp_epochs": 20},
    "pgd": {"pgd.steps": 3},
    "pgd-10": {"pgd.steps": 3},
    "trades": {"trades.steps": 3},
}


def run(name: str, folder: Path, *hooks: Hook, **more: Any) -> None:
    given = {"dataset": "digits", "method": name, "epochs": 2, "batch_size": 64, "width": 4}
    given |= {"limit_train": 150, "limit_test": 30, "holdout": 20}  # three batches per epoch
    given |= {"augment": ("crop:2", "flip"), "attacks": ("clean",), "checkpoint_every": 1, "log_every": 1}
    given |= {"out": str(folder), "guard": "off", "snapshots": False, "threads": 1, "device": "cpu"}
    train(Request(given | {"set": HYPER.get(name, {})} | more).resolve(), hooks=hooks, quiet=True)


def assert_resumes(name: str, folder: Path, *hooks: Hook, **more: Any) -> None:
    """A run that is killed in its second epoch ends with the files of an undisturbed one."""
    run(name, folder / "whole", *hooks, **more)
    with pytest.raises(Killed):
        run(name, folder / "killed", kill_at(4), **more)
    assert not (folder / "killed" / "model.safetensors").exists()
    run(name, folder / "killed", **more)
    for file in ("model.safetensors", "metrics.jsonl"):
        assert (folder / "killed" / file).read_bytes() == (folder / "whole" / file).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("name", methods.names())
def test_a_killed_run_continues_bit_for_bit(name: str, tmp_path: Path) -> None:
    assert_resumes(name, tmp_path, epochs=3)
