"""The runs behind the paths that a user names."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sora.errors import UserError
from sora.runs.folder import RunFolder

DEPTH = 3


def find_runs(paths: Iterable[str | Path]) -> list[RunFolder]:
    """Each run once: a folder that is no run stands for the runs in it, at any depth up to `DEPTH`."""
    found: dict[Path, RunFolder] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise UserError(f"there is no folder {str(path)!r}")
        runs = _runs_in(path, DEPTH)
        if not runs:
            RunFolder(path).read_config()  # raises and says what is missing
        found |= {run.path.resolve(): run for run in runs}
    return list(found.values())


def _runs_in(path: Path, depth: int) -> list[RunFolder]:
    if RunFolder(path).exists():
        return [RunFolder(path)]
    inside = sorted(entry for entry in path.iterdir() if entry.is_dir()) if depth else []
    return [run for entry in inside for run in _runs_in(entry, depth - 1)]
