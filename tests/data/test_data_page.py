"""docs/data.md says what is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sora import data
from sora.data._sources import SOURCES

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text()


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
def test_python_runs(block: str) -> None:
    exec(compile(block, "docs/data.md", "exec"), {})


@pytest.mark.parametrize("name", SOURCES)
def test_the_table_has_the_official_counts(name: str) -> None:
    [row] = re.findall(rf"\| `{name}` \|.*", PAGE)
    counts = SOURCES[name].counts
    assert " / ".join(f"{counts[s]:,}" if s in counts else "-" for s in ("train", "val", "test")) in row


def test_every_name_is_on_the_page() -> None:
    assert all(f"`{name}`" in PAGE or f"--dataset {name}" in PAGE for name in data.names())
