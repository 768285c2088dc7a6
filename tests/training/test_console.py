"""What a run prints: the most important things first, on a terminal of any width and into a file."""

import math
import re
from typing import Any

import pytest

from sora.training.console import Console, fit_parts

LINE = {"loss": 1.2345, "pert_align": 0.876, "step_size": 0.0314}


def shown(capsys: Any, monkeypatch: Any, width: int, line: dict[str, float] = LINE) -> str:
    """The last state of the live line on a terminal of this width."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(width))
    with Console("sora on cifar10, seed 0", 11730, 30, quiet=False) as console:
        console.advance({"step": 4000, "epoch": 11} | line, 1234.0)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
    return next(row for row in re.split(r"[\r\n]", text)[::-1] if "epoch" in row)


def test_place_and_bar_come_first_and_a_wide_terminal_has_all_numbers(capsys: Any, monkeypatch: Any) -> None:
    row = shown(capsys, monkeypatch, 80)
    assert row.startswith("epoch 11/30  step 4000/11730 ")
    assert re.search(r"(\d+:\d\d:\d\d|-:--:--)", row)
    assert "━" in row
    assert "loss 1.234" in row or "loss 1.235" in row
    assert "images/s" not in row
    assert len(row.rstrip()) <= 80
    row = shown(capsys, monkeypatch, 140)
    for part in ("PertAlign 0.88", "alpha 0.0314", "1234 images/s"):
        assert part in row
    nothing = LINE | {"pert_align": math.nan, "step_size": math.nan}
    row = shown(capsys, monkeypatch, 140, nothing)
    assert "PertAlign" not in row
    assert "alpha" not in row


def test_a_file_gets_one_line_per_epoch(capsys: Any) -> None:
    with Console("sora on digits, seed 0", 6, 2, quiet=False) as console:
        for step in range(1, 7):
            console.advance({"step": step, "epoch": (step - 1) // 3 + 1} | LINE, 100.0)
    rows = capsys.readouterr().err.splitlines()
    assert [row.partition(": ")[2][:9] for row in rows] == ["epoch 1/2", "epoch 2/2"]


@pytest.mark.parametrize(
    ("width", "text"), [(0, ""), (3, "abc"), (7, "abc"), (8, "abc  def"), (99, "abc  def")]
)
def test_parts_are_kept_in_order_while_they_fit(width: int, text: str) -> None:
    assert fit_parts(["abc", "def"], width) == text


def test_names_in_the_title_are_not_markup() -> None:
    with Console("sora on [/x], seed 0", 6, 2, quiet=False) as console:
        column = console.progress.columns[0]
        assert str(column(console.progress.tasks[0])) == "sora on [/x], seed 0"
