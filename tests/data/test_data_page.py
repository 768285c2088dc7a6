"""The tables of docs/data.md are correct; tests/docs runs its code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sora import data

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [name for name in data.names() if ":" not in name])
def test_the_table_has_the_official_counts(name: str) -> None:
    [row] = re.findall(rf"\| `{name}` \|.*", PAGE)
    counts = data.info(name).counts
    assert " / ".join(f"{counts[s]:,}" if s in counts else "-" for s in ("train", "val", "test")) in row


def test_every_name_is_on_the_page() -> None:
    assert all(f"`{name}`" in PAGE or f"--dataset {name}" in PAGE for name in data.names())
