"""The numbers of a run on their way from the device to its logs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sora._files import JsonLines
from sora.methods import StepOutput
from sora.training import distributed
from sora.training.accumulate import NUMBERS

LOGS = ("metrics", "evals", "events", "monitors")


class Journal:
    """Keeps the numbers of recent steps on the device and appends rows to the run's logs.

    Args:
        folder: The run folder.
        lengths: How much of each log the restored checkpoint knows; the rest is cut off.
        device: Where the numbers come from.
        writes: Whether this rank writes files; the others only take part in the averages.
    """

    def __init__(self, folder: Path, lengths: Mapping[str, int], device: torch.device, writes: bool) -> None:
        names = LOGS if writes else ()
        self.logs = {name: JsonLines(folder / f"{name}.jsonl", lengths.get(name, 0)) for name in names}
        self.device = device
        self._recent: list[dict[str, Tensor]] = []

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as stack:
            for log in self.logs.values():
                stack.callback(log.close)

    def note(self, out: StepOutput, rate: float) -> None:
        """Keep one step's numbers, without waiting for them."""
        row = {name: getattr(out, name) for name in NUMBERS} | out.extras
        self._recent.append(row | {"lr": torch.full((), rate)})

    def latest(self, name: str) -> float:
        """A number of the last step."""
        return float(self._recent[-1][name])

    def collect(self) -> list[dict[str, float]]:
        """The numbers of the steps since the last call, averaged over ranks, in one transfer."""
        rows, self._recent = self._recent, []
        if not rows:
            return []
        tensors = [value.detach().float().to(self.device) for row in rows for value in row.values()]
        numbers = iter(distributed.mean_over_ranks(torch.stack(tensors)).tolist())
        return [{name: next(numbers) for name in row} for row in rows]

    def write(self, log: str, row: Mapping[str, Any]) -> None:
        """Append a row to a log."""
        if log in self.logs:
            self.logs[log].append(row)

    def lengths(self) -> dict[str, int]:
        """Bytes of each log so far, for a checkpoint."""
        return {name: log.length() for name, log in self.logs.items()}
