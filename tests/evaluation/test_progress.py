"""The progress bar of evaluations, on a terminal and in a log file."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sora.evaluation.progress import Meter


def test_the_bar_moves_within_a_unit_and_ends_with_it() -> None:
    model = nn.Flatten()
    with Meter(model, show=True) as meter:
        meter.plan("pgd", 100)
        meter.plan("pgd", 60)
        with meter.unit("pgd", 40):
            model(torch.rand(8, 3))
            assert meter.completed == 8
            model(torch.rand(90, 3))
            assert meter.completed == 40
        with meter.unit("pgd", 20):
            pass
        assert (meter.completed, meter.total) == (60, 60)


def test_a_log_file_gets_lines(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Flatten()
    with Meter(model, show=True, interval=-1) as meter:
        meter.plan("fgsm", 30)
        with meter.unit("fgsm, batch 1 of 2", 20):
            model(torch.rand(20, 3))
        with meter.unit("fgsm, batch 2 of 2", 10):
            model(torch.rand(10, 3))
    assert "fgsm, batch 2 of 2: 67 % done" in capsys.readouterr().err


def test_nothing_is_counted_or_printed_when_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Flatten()
    with Meter(model, show=False, interval=-1) as meter, meter.unit("fgsm", 20):
        model(torch.rand(20, 3))
        assert meter.completed == 0
    assert capsys.readouterr().err == ""
