"""docs/figures.md names every figure of the paper and every command that draws one."""

from __future__ import annotations

import re
from pathlib import Path

from sora.report.paper_figures import FIGURES

PAGE = (Path(__file__).parents[2] / "docs" / "figures.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| ([\d, ]+) \|.*\| (.+) \|$", PAGE, flags=re.MULTILINE)


def test_every_figure_of_the_paper_has_a_row() -> None:
    numbers = [int(number) for row, _ in ROWS for number in row.split(",")]
    assert sorted(numbers) == list(range(1, 17))


def test_rows_and_code_agree() -> None:
    described = {}
    for numbers, commands in ROWS:
        for name in set(re.findall(r"`sora figure ([\w-]+)", commands)):
            described[name] = tuple(int(number) for number in numbers.split(","))
    assert described == {name: entry.numbers for name, entry in FIGURES.items()}
