"""Short names that tell several runs apart."""

from __future__ import annotations

from collections.abc import Sequence

from sora.errors import UserError
from sora.runs.folder import RunFolder


def unique_labels(runs: Sequence[RunFolder]) -> list[str]:
    """The folders' names, with as many parents in front as it takes to tell them apart."""
    parts = [run.path.resolve().parts for run in runs]
    if len(set(parts)) < len(parts):
        raise UserError("the same run is named twice")
    depths = [1] * len(parts)
    while True:
        names = ["-".join(own[-depth:]) for own, depth in zip(parts, depths, strict=True)]
        longer = [
            min(depth + (names.count(name) > 1), len(own))
            for name, depth, own in zip(names, depths, parts, strict=True)
        ]
        if longer == depths:
            return names
        depths = longer
