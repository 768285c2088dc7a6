"""A later batch outside the pixel range is noticed at the next log line, without waiting in the step."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from sora import methods
from sora.data import Batch
from sora.errors import UserError
from sora.settings import Request
from sora.threat import Linf
from sora.training import Hook, train
from sora.training.run import Run
from tests.methods.toys import images, two_layer
from tests.methods.waiting import no_sync


class Spoil(Hook):
    """Changes the images of one step."""

    def __init__(self, step: int, factor: float) -> None:
        self.step, self.factor = step, factor

    def before_step(self, run: Run, batch: Batch) -> None:
        if run.state.step == self.step - 1:
            batch.x.mul_(self.factor)


def tiny(out: Path, **given: object):
    small = {"dataset": "digits", "epochs": 1, "width": 4, "set": {"model.stages": 1}, "batch_size": 16}
    small |= {
        "limit_train": 128,
        "limit_test": 20,
        "holdout": 20,
        "threads": 1,
        "log_every": 4,
        "eval_every": 0,
    }
    return Request({**small, **given, "out": str(out)}).resolve()


@pytest.mark.parametrize("factor", [2.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_later_batch_is_noticed_with_the_log_line(factor: float, accumulate: int, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the 4 steps up to step 8 has inputs outside \(0.0, 1.0\)"):
        train(tiny(tmp_path, accumulate=accumulate), hooks=[Spoil(6, factor)], quiet=True)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [4]
    assert "outside_box" not in lines[0]


def test_the_flag_of_a_step_waits_for_nothing() -> None:
    method, model, (x, y) = methods.create("sora", Linf("8/255")), two_layer(), images()
    method.step(model, x, y)
    with no_sync():
        flags = [method.step(model, x * factor, y).extras["outside_box"] for factor in (1, 3, math.nan)]
    assert torch.stack(flags).tolist() == [0, 1, 1]


def test_data_without_a_pixel_range_must_be_finite() -> None:
    method, model, (x, y) = methods.create("sora", Linf("8/255", box=None)), two_layer(), images()
    method.step(model, x, y)
    flags = [method.step(model, x * factor, y).extras["outside_box"].item() for factor in (100, math.inf)]
    assert flags == [0, 1]
