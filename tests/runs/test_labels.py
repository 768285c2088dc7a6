"""Names that tell runs apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from sora.errors import UserError
from sora.runs import RunFolder, unique_labels


def labels(tmp_path: Path, *names: str) -> list[str]:
    return unique_labels([RunFolder(tmp_path / name) for name in names])


def test_parents_are_named_only_where_they_are_needed(tmp_path: Path) -> None:
    assert labels(tmp_path, "a", "b") == ["a", "b"]
    assert labels(tmp_path, "x/a", "y/a", "y/b") == ["x-a", "y-a", "b"]
    assert labels(tmp_path, "1/x/a", "2/x/a") == ["1-x-a", "2-x-a"]


def test_the_same_run_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the same run is named twice"):
        labels(tmp_path, "a", "x/../a")
