"""A look at the model before hours are spent on it: does it return logits for these examples?"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from sora._checks import check_inputs, check_logits
from sora._passes import input_gradient
from sora.errors import UserError
from sora.threat import Threat


class Inspection(NamedTuple):
    """What the first batch tells."""

    num_classes: int
    zero_gradients: float
    """Share of its examples whose input gradient is exactly zero: attacks by gradient are blind there."""


def inspect(
    model: nn.Module, x: Tensor, y: Tensor, labels: Tensor, threat: Threat, num_classes: int | None = None
) -> Inspection:
    """Raise where a number about this model would mean nothing.

    Args:
        model: The model, in evaluation mode.
        x: The first batch.
        y: Its labels.
        labels: All labels.
        threat: The norm ball and the box.
        num_classes: How many classes the data has, if that is known.
    """
    check_inputs(x, y, threat)
    with _one_line(f"the model does not take inputs of shape {tuple(x.shape)}"), torch.no_grad():
        logits = model(x)
    predicted(logits)
    if bool((logits >= 0).all()) and bool(((logits.sum(1) - 1).abs() < 1e-3).all()):
        raise UserError("the model returns probabilities, which hides gradients; take its softmax away")
    check_logits(logits, labels)
    if num_classes is not None and logits.shape[1] != num_classes:
        raise UserError(f"the model tells {logits.shape[1]} classes apart, the data has {num_classes}")
    with _one_line("the model cannot be differentiated with respect to its inputs"):
        gradient, _ = input_gradient(model, x, y)
    return Inspection(logits.shape[1], float((gradient.flatten(1) == 0).all(1).float().mean()))


def predicted(logits: Tensor) -> Tensor:
    """The class each row of logits stands for."""
    if not isinstance(logits, Tensor) or logits.dim() != 2 or logits.shape[1] < 2:
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise UserError(f"the model returns {shape}; expected logits of shape (batch, two or more classes)")
    if not bool((logits < torch.inf).all()):
        raise UserError("the model returns NaN or infinity for some inputs; its accuracy would mean nothing")
    return logits.argmax(1)


class _one_line:
    """Turns what torch says about shapes and graphs into the user's one line."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RuntimeError) and not isinstance(error, torch.OutOfMemoryError):
            raise UserError(f"{self.text}: {str(error).strip().splitlines()[0]}") from error
