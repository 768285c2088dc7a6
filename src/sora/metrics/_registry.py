"""Metrics by name, with how a plot over training draws each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from sora._checks import check_model, checking_once
from sora._passes import bare, frozen
from sora._registry import Registry
from sora.metrics._batch import AttackedBatch
from sora.threat import Threat

Function = Callable[[AttackedBatch], Tensor]
Scale = Literal["as is", "scaled", "log, scaled"]


@dataclass(frozen=True)
class Info:
    """A registry entry."""

    name: str
    summary: str
    function: Function
    """From a batch to a 0-d tensor."""
    scale: Scale = "as is"
    """How it is drawn beside accuracies and cosines: unchanged, or scaled to [0, 1] over the run."""
    colour: str | None = None
    """Colour of its line; a metric without one is measured but not drawn."""
    line: str = "-"
    """Style of its line, as in matplotlib."""


_CHECKED: WeakKeyDictionary[nn.Module, set[object]] = WeakKeyDictionary()  # batches, by model
METRICS: Registry[Info] = Registry("metric", "sora.metrics", order=("alignment",))


def register(
    name: str, summary: str, *, scale: Scale = "as is", colour: str | None = None, line: str = "-"
) -> Callable[[Function], Function]:
    """Decorator that registers a function of an `AttackedBatch`; see `Info` for the arguments."""

    def add(function: Function) -> Function:
        METRICS.add(Info(name, summary, function, scale, colour, line))
        return function

    return add


def names() -> list[str]:
    """All metrics, in the order in which plots list them."""
    return METRICS.names()


def info(name: str) -> Info:
    """The entry of a metric."""
    return METRICS.info(name)


def create(name: str) -> Function:
    """The function of a metric."""
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
    """Metrics of one batch, in evaluation mode; weights, buffers, mode and flags stay as they were.

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
    with frozen(model), checking_once(done, model, x, y, threat, also=threat):
        batch = AttackedBatch(model, x, y, threat, seed)
        values = [function(batch).float() for function in functions.values()]
        return dict(zip(functions, torch.stack(values).tolist(), strict=True))
