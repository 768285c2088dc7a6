"""The progress bar of evaluations, on a terminal and in a log file."""

import pytest
import torch
from torch import nn

from sora.evaluation import progress
from sora.evaluation.progress import PassMeter


def test_the_bar_moves_within_a_unit_and_ends_with_it() -> None:
    model = nn.Flatten()
    with PassMeter(model, show=True) as meter:
        meter.plan("pgd", 100)
        meter.plan("pgd", 60)
        with meter.unit("pgd", 40):
            model(torch.rand(8, 3))
            assert meter.completed == 8
            model(torch.rand(90, 3))
            assert meter.completed == 40
        with meter.unit("pgd", 20):
            pass
        assert meter._bar is not None
        assert meter.completed == meter._bar.tasks[0].total == 60


@pytest.mark.parametrize("show", [True, False])
def test_a_log_file_gets_lines_if_progress_is_shown(show: bool, capsys, monkeypatch) -> None:
    monkeypatch.setattr(progress, "INTERVAL", -1)
    model = nn.Flatten()
    with PassMeter(model, show) as meter:
        meter.plan("fgsm", 30)
        for number, count in enumerate((20, 10)):
            with meter.unit(f"fgsm, batch {number + 1} of 2", count):
                model(torch.rand(count, 3))
        assert meter.completed == (30 if show else 0)
    printed = capsys.readouterr().err
    assert ("fgsm, batch 2 of 2: 67 % done" in printed) == show
    assert show or printed == ""
