"""Switching a model's mode for an attack and putting back exactly what was there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module, active: bool = True) -> Iterator[None]:
    """Evaluation mode inside the block; afterwards, also after an exception, each module's own mode again.

    Args:
        model: The model; its sub-modules may be in different modes, and get them back.
        active: `False` leaves the model as it is, so that a setting can be passed straight in.
    """
    modes = [(module, module.training) for module in model.modules()] if active else []
    try:
        if active:
            model.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Evaluation mode and no parameter gradients inside the block; all flags restored afterwards."""
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        with evaluating(model):
            for parameter, _ in flags:
                parameter.requires_grad_(False)
            yield
    finally:
        for parameter, requires_grad in flags:
            parameter.requires_grad_(requires_grad)
