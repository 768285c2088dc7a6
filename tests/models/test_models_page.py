"""The tables of docs/models.md are correct; tests/docs runs its code."""

from __future__ import annotations

from pathlib import Path

import torch

from sora.models import create, info, names

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line[:3] == "| `"
]


def test_parameter_table_is_true() -> None:
    data = [(10, 3, 32), (100, 3, 32), (200, 3, 64), (9, 3, 28), (8, 1, 28)]
    rows = [row for row in ROWS if len(row) == 6]
    assert [row[0] for row in rows] == [f"`{name}`" for name in names()]
    for name, *counts in rows:
        for count, sizes in zip(counts, data, strict=True):
            with torch.device("meta"):
                model = create(name.strip("`"), *sizes)
            assert f"{sum(p.numel() for p in model.parameters()):,}" == count


def test_option_table_is_true() -> None:
    written = [[cell.strip("`") for cell in row[:3]] for row in ROWS if len(row) == 4]
    assert written == [
        [name, o, repr(default)] for name in names() for o, default in info(name).options.items()
    ]
