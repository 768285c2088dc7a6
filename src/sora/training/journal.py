"""The numbers of a run on their way from the device to its logs."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from sora.methods import StepOutput
from sora.runs import LogName
from sora.runs.logs import Log
from sora.training import distributed

NUMBERS = ("loss", "accuracy", "pert_align", "linearity", "step_size")  # of a step, in the order of the log


class Journal:
    """Keeps the numbers of recent steps on the device and appends lines to the run's logs.

    There are no logs on a rank that only takes part in the averages.
    """

    def __init__(self, logs: Mapping[LogName, Log], device: torch.device) -> None:
        self._logs, self._device = logs, device
        self._recent: list[dict[str, Tensor]] = []

    def note(self, out: StepOutput, rate: float) -> None:
        """Keep one step's numbers, without waiting for them."""
        numbers = {name: getattr(out, name) for name in NUMBERS} | out.extras
        self._recent.append(numbers | {"lr": torch.full((), rate)})

    def add(self, name: str, value: Tensor) -> None:
        """Keep one more number of the step noted last."""
        self._recent[-1][name] = value

    def collect(self) -> list[dict[str, float]]:
        """Return the numbers of the steps since the last call, averaged over ranks, in one transfer."""
        steps, self._recent = self._recent, []
        if not steps:
            return []
        tensors = [value.detach().float().to(self._device) for step in steps for value in step.values()]
        # A loss that is not a number on one rank must not be hidden by the others'.
        losses = torch.tensor([name == "loss" for step in steps for name in step], device=self._device)
        numbers = iter(distributed.mean_over_ranks(torch.stack(tensors), required=losses).tolist())
        return [{name: next(numbers) for name in step} for step in steps]

    def write(self, log: LogName, line: Mapping[str, Any]) -> None:
        """Append a line to a log."""
        if log in self._logs:
            self._logs[log].append(line)

    def header(self) -> dict[str, Any]:
        """Return length and checksum of each log, for a checkpoint; the lines are then on the disk."""
        for log in self._logs.values():
            log.sync()
        return {
            "logs": {name: log.length() for name, log in self._logs.items()},
            "log_digests": {name: log.digest() for name, log in self._logs.items()},
        }


def mean(values: Iterable[float]) -> float:
    """Return the mean of the values that are not NaN; NaN if there are none."""
    real = [value for value in values if not math.isnan(value)]
    return sum(real) / len(real) if real else math.nan
