"""Checks on the first batch, before hours are spent on a model that does not return logits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sora._checks import check_inputs, check_labels
from sora._passes import input_gradient
from sora.errors import UserError
from sora.evaluation.adversaries import check_unchanged
from sora.threat import Threat, flat_norm, unit

RANDOM = 1e-4  # difference of two passes, relative to the logits, of a random model (AutoAttack's limit)


class Inspection(NamedTuple):
    """What the first batch shows."""

    num_classes: int
    zero_gradients: float
    """Share of its examples whose input gradient is exactly zero: gradient attacks fail on them."""
    nonnegative: bool
    """Whether no output is below zero, as after a softmax, a sigmoid or an exponential."""
    finite_gradients: bool
    """Whether all input gradients are numbers; an attack that meets others has no valid result."""
    randomised: bool
    """Whether two passes over the same examples differ."""
    dynamic: bool
    """Whether a forward pass computes gradients or changes the model's own parameters or buffers."""


def inspect_model(
    model: nn.Module, x: Tensor, y: Tensor, labels: Tensor, threat: Threat, num_classes: int | None = None
) -> Inspection:
    """Raise if an accuracy of this model on this data would be meaningless.

    Args:
        model: The model, in evaluation mode.
        x: The first batch.
        y: Its labels.
        labels: All labels.
        threat: The norm ball and the box.
        num_classes: The number of classes of the data, if known.
    """
    check_inputs(x, y, threat)
    given = x.clone()
    watch = _DynamicCheck(model)
    refused = f"the model does not accept inputs of shape {tuple(x.shape)}"
    with _as_user_error(refused), torch.no_grad(), watch:
        logits = model(x)
    check_unchanged(given, x)
    predicted_classes(logits)
    if bool((logits >= 0).all()) and bool(((logits.sum(1) - 1).abs() < 1e-3).all()):
        raise UserError("the model returns probabilities, which hides gradients; remove its softmax")
    check_labels(logits, labels)
    if num_classes is not None and logits.shape[1] != num_classes:
        raise UserError(f"the model has {logits.shape[1]} classes, the data has {num_classes}")
    with _as_user_error("the model cannot be differentiated with respect to its inputs"):
        gradient, again = input_gradient(model, x, y)
    return Inspection(
        logits.shape[1],
        zero_gradients=float((gradient.flatten(1) == 0).all(1).float().mean()),
        nonnegative=bool((logits >= 0).all()),
        finite_gradients=bool(gradient.isfinite().all()),
        randomised=bool((relative_difference(logits, again) > RANDOM).any()),
        dynamic=watch.dynamic,
    )


def relative_difference(first: Tensor, second: Tensor) -> Tensor:
    """The distance between two outputs for each example, relative to their length, shape (B,)."""
    # As AutoAttack's check has it: both rows are brought to length one. On the CPU, since MPS has no float64.
    return flat_norm(unit(first.cpu().double()) - unit(second.cpu().double())).flatten()


class _DynamicCheck:
    """Notes whether a forward pass without gradients runs a backward pass or changes the model.

    Tensors that autograd saved are unpacked by a backward pass only.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model, self._backward = model, False
        self._before = self._versions()
        self._hooks = torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, self._unpack)

    def __enter__(self) -> None:
        self._hooks.__enter__()

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)

    @property
    def dynamic(self) -> bool:
        """Whether either happened."""
        return self._backward or self._versions() != self._before

    def _unpack(self, tensor: Tensor) -> Tensor:
        self._backward = True
        return tensor

    def _versions(self) -> list[int]:
        """How often each parameter and buffer was changed in place."""
        tensors = (*self._model.parameters(), *self._model.buffers())
        return [each._version for each in tensors if not each.is_inference()]


def predicted_classes(logits: Tensor) -> Tensor:
    """The class of the highest logit in each row; raises for what cannot be logits."""
    if not isinstance(logits, Tensor) or logits.dim() != 2 or logits.shape[1] < 2:
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise UserError(f"the model returns {shape}; expected logits of shape (batch, two or more classes)")
    if not bool((logits < torch.inf).all()):
        raise UserError("the model returns NaN or infinity for some inputs; its accuracy is meaningless")
    return logits.argmax(1)


@contextmanager
def _as_user_error(message: str) -> Iterator[None]:
    """Turn torch's errors about shapes and graphs into one line."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise UserError(f"{message}: {str(error).strip().splitlines()[0]}") from error
