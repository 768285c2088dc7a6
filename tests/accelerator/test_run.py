"""A whole run on an accelerator: guard, average, checkpoints, resuming, evaluation, prediction."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from sora import data
from sora.cli import main
from sora.settings import Request
from sora.training import Hook, train

SMALL = {
    "dataset": "digits", "epochs": 2, "batch_size": 32, "width": 4, "limit_train": 96, "limit_test": 20,
    "holdout": 20, "log_every": 3, "checkpoint_every": 2, "attacks": ("clean", "fgsm", "pgd2"), "threads": 1,
    "ema": 0.9, "eval_every": 2, "augment": ("crop:1",), "set": {"model.stages": 1},
}  # fmt: skip
GUARDS = ("warn", *(pytest.param(guard, marks=pytest.mark.slow) for guard in ("rollback", "pgd")))


def settings(out: Path, device: str, **changes: Any) -> Any:
    return (
        Request({**SMALL, "method": "sora", "out": str(out), "device": device} | changes).resolve().settings
    )


class Counted(Hook):
    """Counts host copies within steps and for log lines; may stop the run."""

    def __init__(self, mode: Any, die_at: int = 0) -> None:
        self.mode, self.die_at, self.steps, self.lines = mode, die_at, [], []

    def before_step(self, run: Any, batch: Any) -> None:
        self.mark = self.mode.count
        if self.die_at and run.state.step == self.die_at:
            raise KeyboardInterrupt

    def after_step(self, run: Any, out: Any) -> None:
        self.steps.append(self.mode.count - self.mark)
        self.mark = self.mode.count

    def on_log(self, run: Any, line: Any) -> None:
        self.lines.append(self.mode.count - self.mark)


@pytest.mark.parametrize("guard", GUARDS)
def test_training_copies_nothing_in_a_step_and_once_for_a_log_line(
    guard: str, device: Any, copies: Any, tmp_path: Path
) -> None:
    with copies() as mode:
        hook = Counted(mode)
        train(settings(tmp_path / "run", device.type, guard=guard, ema=0.0), hooks=[hook], quiet=True)
    assert hook.steps[1:] == [0] * 5  # the first one checks its inputs
    assert len(hook.lines) == 2
    assert max(hook.lines) <= 2  # the numbers of the steps, and the second look at an alarm
    assert min(hook.lines) == 1


def test_a_run_and_what_follows_it(
    device: Any, copies: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"there": device.type, "resumed": device.type}
    places |= {"here": "cpu"} if device.type == "emulated" else {}
    for name, place in places.items():
        own = settings(tmp_path / name, place)
        if name == "resumed":
            with copies() as mode, pytest.raises(KeyboardInterrupt):
                train(own, hooks=[Counted(mode, die_at=4)], quiet=True)
        train(own, quiet=True)
    weights = {name: (tmp_path / name / "model.safetensors").read_bytes() for name in places}
    assert len(set(weights.values())) == 1  # resumed, and if emulated also on the CPU: the same bits
    summary = json.loads((tmp_path / "there" / "summary.json").read_text())
    assert summary["machine"]["gpu"]

    run, image = str(tmp_path / "there"), tmp_path / "0.png"
    Image.fromarray(data.load("digits").test.gather(torch.tensor([0]))[0, 0].numpy()).save(image)
    flags = ["--device", device.type, "--threads", "1"]
    assert main(["evaluate", run, "--attacks", "clean,pgd2", "--limit", "5", *flags]) == 0
    assert main(["predict", run, str(image), "--attack", "pgd2", *flags]) == 0
    assert main(["probe", "samples", run, "--device", device.type, "--out", str(tmp_path / "s.png")]) == 0
    assert "0.png" in capsys.readouterr().out
