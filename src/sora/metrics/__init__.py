"""Numbers of one batch that show catastrophic overfitting (appendix J of the paper), found by name.

`measure(model, x, y, threat, ("kl", "pgd"))` computes some of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from sora._checks import check_model, checking
from sora._passes import bare, frozen
from sora._registry import Entry, Registry
from sora.metrics._batch import AttackedBatch, GradientAndLogits
from sora.threat import Threat

Function = Callable[[AttackedBatch], Tensor]
Scale = Literal["as is", "scaled", "log, scaled"]


@dataclass(frozen=True)
class MetricInfo(Entry):
    """A metric, and how a plot over training draws it."""

    function: Function
    """From a batch to a 0-d tensor."""
    scale: Scale = "as is"
    """How it is drawn beside accuracies and cosines: unchanged, or scaled to [0, 1] over the run."""
    colour: str | None = None
    """Colour of its line; a metric without one is measured but not drawn."""
    line: str = "-"
    """Style of its line, as in matplotlib."""


METRICS = Registry("metric", "sora.metrics", MetricInfo, order=("alignment",))
register, names, info = METRICS.register, METRICS.names, METRICS.info
_CHECKED: WeakKeyDictionary[nn.Module, set[object]] = WeakKeyDictionary()  # batches, by model


def create(name: str) -> Function:
    """Return the function of a metric."""
    return info(name).function


def check_metrics(metrics: Iterable[str]) -> None:
    """Raise if one of these metrics does not exist."""
    for name in metrics:
        info(name)


def measure(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    threat: Threat,
    metrics: Iterable[str] | None = None,
    seed: int = 0,
) -> dict[str, float]:
    """Measure one batch in evaluation mode; weights, buffers, mode and flags stay as they were.

    Args:
        model: From inputs to logits.
        x: Images inside the box, shape (B, ...).
        y: Class labels, shape (B,).
        threat: The norm ball and the box.
        metrics: Their names; all if not given.
        seed: Seed of the random numbers some of them need; torch's own random state is not used.
    """
    functions = {name: create(name) for name in (names() if metrics is None else metrics)}
    check_model(model)
    if not functions:
        return {}
    model = bare(model)
    done = _CHECKED.setdefault(model, set())
    with frozen(model), checking(model, x, y, threat, done=done, also=threat):
        batch = AttackedBatch(model, x, y, threat, seed)
        values = [function(batch).float() for function in functions.values()]
        return dict(zip(functions, torch.stack(values).tolist(), strict=True))


__all__ = [
    "AttackedBatch",
    "GradientAndLogits",
    "MetricInfo",
    "Scale",
    "check_metrics",
    "create",
    "info",
    "measure",
    "names",
    "register",
]

METRICS.discover()  # so that the order of names does not depend on who imports what
