"""What a model is trained for: how its output is read, the loss of each example, and when it is correct.

Methods, attacks, metrics and evaluation all ask a `Task`; the default is classification by cross-entropy.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sora._checks import check_labels, has_integers
from sora._passes import cross_entropy, precise
from sora.errors import UserError, not_allowed, short

CLASSES, BINARY, MULTI_LABEL = LOSSES = ("cross-entropy", "binary", "multi-label")
Judge = Callable[[Tensor, Tensor], Tensor]  # from outputs and targets to one value per example


@dataclass(frozen=True)
class Task:
    """How a model's output is read and judged.

    Args:
        loss: A name of `LOSSES`, or `fn(output, target) -> (B,)`, the loss of each example. `cross-entropy`:
            logits (B, classes) and integers (B,); `binary`: one logit and 0 or 1 each; `multi-label`: logits
            and 0 or 1 of shape (B, labels), the mean over labels counts.
        outputs: From what the model returns to the tensor that loss and `correct` get. Without it: a tensor,
            `.logits`, `["logits"]`, `["out"]`, the only tensor of a dict, or the first entry of a tuple.
        correct: `fn(output, target) -> (B,)`, bool; without it a loss of your own gives no accuracy.
        class_weights: Factor on the loss of each class (`cross-entropy`); a batch's loss is the plain mean.
    """

    loss: str | Judge = CLASSES
    outputs: Callable[[Any], Tensor] | None = None
    correct: Judge | None = None
    class_weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if not callable(self.loss) and self.loss not in LOSSES:
            raise not_allowed("loss", self.loss, (*LOSSES, "a function"))
        for name in ("outputs", "correct"):
            given = getattr(self, name)
            if given is not None and not callable(given):
                raise UserError(f"{name} is {short(given)}; expected a function")
        if self.class_weights is not None:
            try:
                weights = tuple(float(weight) for weight in self.class_weights)
            except (TypeError, ValueError):
                weights = (math.nan,)
            if self.loss != CLASSES or not all(0 <= weight < math.inf for weight in weights):
                raise UserError(
                    f"class_weights are {short(self.class_weights)} with loss {self.name}; expected numbers"
                    f" from 0, with loss='{CLASSES}'"
                )
            object.__setattr__(self, "class_weights", weights)

    @property
    def name(self) -> str:
        """The loss in messages."""
        return repr(self.loss) if isinstance(self.loss, str) else getattr(self.loss, "__name__", "your own")

    @property
    def has_classes(self) -> bool:
        """Whether outputs are logits of exclusive classes, which have probabilities."""
        return self.loss == CLASSES

    @property
    def answers_classes(self) -> bool:
        """Whether an answer is a class, compared with the label; otherwise it is only right or wrong."""
        return self.loss in (CLASSES, BINARY) and self.correct is None

    @property
    def judges(self) -> bool:
        """Whether it says which outputs are correct, so that there are accuracies."""
        return isinstance(self.loss, str) or self.correct is not None

    def refuse(self, what: str) -> None:
        """Raise if there are no class probabilities, which `what` needs."""
        if not self.has_classes:
            raise UserError(f"{what} needs class probabilities: loss='{CLASSES}', not {self.name}")

    # The output, its loss and its correctness.

    def read(self, output: Any) -> Tensor:
        """Return the tensor that loss and `correct` get."""
        try:
            found = recognised(output) if self.outputs is None else self.outputs(output)
        except (LookupError, AttributeError, TypeError) as error:
            why = f"{type(error).__name__}: {error}"
            raise UserError(f"outputs cannot read what the model returns, {_kind(output)}: {why}") from error
        if not isinstance(found, Tensor):
            which = "outputs returns" if self.outputs else "the model returns"
            hint = "outputs=fn must return a tensor; expected logits of shape (batch, classes), or the like"
            raise UserError(f"{which} {_kind(found)}; {hint}")
        return found

    @contextmanager
    def reading(self, model: nn.Module) -> Iterator[None]:
        """Make the model return the tensor that is read from its output, inside the block."""
        handle = model.register_forward_hook(lambda module, args, output: self.read(output))
        try:
            yield
        finally:
            handle.remove()

    def loss_of(self, output: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
        """Return the mean loss, or with `none` each example's; labels may be rows of probabilities."""
        if self.loss == CLASSES:
            if self.class_weights is None:
                return cross_entropy(output, y, reduction)
            z, targets = precise(output), y if y.is_floating_point() else y.long()
            weights = _weights(self.class_weights, z.device, z.dtype)
            losses = F.cross_entropy(z, targets, weights, reduction="none")
        elif self.loss in (BINARY, MULTI_LABEL):
            z = precise(output).reshape(len(y), -1)
            losses = F.binary_cross_entropy_with_logits(z, y.reshape(len(y), -1).to(z), reduction="none")
            losses = losses.mean(1)
        else:
            losses = self._each("loss", self.loss, output, y)
        return losses if reduction == "none" else losses.mean()

    def right(self, output: Tensor, y: Tensor) -> Tensor | None:
        """Return which examples are correct, (B,) bool; None if nobody says when."""
        if self.correct is not None:
            right = self._each("correct", self.correct, output, y)
            if right.dtype != torch.bool:
                raise UserError(f"correct returns {right.dtype}; expected bool")
            return right
        if self.loss == CLASSES:
            return output.argmax(1) == y
        if isinstance(self.loss, str):
            return ((output > 0).reshape(len(y), -1) == (y > 0.5).reshape(len(y), -1)).all(1)
        return None

    def _each(self, what: str, function: Any, output: Tensor, y: Tensor) -> Tensor:
        values = function(output, y)
        if not isinstance(values, Tensor) or values.shape != y.shape[:1]:
            shape = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else _kind(values)
            hint = " (reduction='none', then a mean over the other dimensions)" if what == "loss" else ""
            raise UserError(f"{what} returns {shape}; expected one value per example, ({len(y)},){hint}")
        return values

    # Evaluation stores answers as integers beside labels.

    def answers(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the predicted class of each example; 1 or 0, right or wrong, if answers are no classes."""
        if self.answers_classes:
            return output.argmax(1) if self.has_classes else (output.reshape(-1) > 0).long()
        right = self.right(output, y)
        return torch.zeros(len(y), dtype=torch.int64) if right is None else right.long()

    def labels(self, y: Tensor) -> Tensor:
        """Return what `answers` are compared with."""
        if not self.answers_classes:
            return torch.ones(len(y), dtype=torch.int64)
        return y if self.has_classes else (y.reshape(-1) > 0.5).long()

    def chance(self, y: Tensor) -> float | None:
        """Return the accuracy of the best constant answer; None if the labels tell it, 0 if unknown."""
        if self.answers_classes:
            return None
        if self.loss != MULTI_LABEL or self.correct is not None:
            return 0.0
        rows = [tuple(row) for row in (y > 0.5).reshape(len(y), -1).tolist()]
        return Counter(rows).most_common(1)[0][1] / len(y)

    # Checks of the first batch; they read values on the host.

    def check_targets(self, x: Tensor, y: Tensor) -> None:
        """Raise if these targets do not fit the inputs or the loss."""
        found = f"labels have shape {tuple(y.shape)} and type {y.dtype}"
        if self.has_classes and (y.shape != x.shape[:1] or not has_integers(y)):
            hint = ""
            if y.shape[:1] == x.shape[:1]:
                hint = "; multi-label targets need loss='multi-label', others a loss of your own"
                hint = "; 0 or 1 as a number needs loss='binary'" if y.dim() == 1 else hint
            raise UserError(f"{found}; expected {len(x)} integers{hint}")
        if y.shape[:1] != x.shape[:1]:
            raise UserError(f"{found}; expected {len(x)} targets, one for each input")
        named = isinstance(self.loss, str) and not self.has_classes
        if named and (y.is_complex() or not bool(((y >= 0) & (y <= 1)).all())):
            raise UserError(f"{found}, with values outside 0 to 1; loss={self.name} expects 0 or 1")
        if self.loss == BINARY and y.numel() != len(x):
            raise UserError(f"{found}; loss='binary' expects {len(x)} numbers, 0 or 1")

    def check_output(self, output: Tensor, y: Tensor) -> None:
        """Raise if the output of the model does not fit the targets or the loss."""
        shape = tuple(output.shape)
        if self.has_classes:
            check_labels(output, y)
            if self.class_weights is not None and len(self.class_weights) != shape[1]:
                raise UserError(f"{len(self.class_weights)} class_weights; the model has {shape[1]} classes")
        # A method's first pass may have several copies of the batch, or an image per class.
        output, y = output[: len(y)], y[: len(output)]
        if self.has_classes and self.correct is None:
            return
        if self.loss == BINARY and output.numel() != len(y):
            raise UserError(f"the model returns shape {shape}; loss='binary' expects one logit per example")
        if self.loss == MULTI_LABEL and (output.shape != y.shape or output.dim() < 2):
            raise UserError(
                f"the model returns shape {shape}, targets have {tuple(y.shape)}; loss='multi-label' expects"
                " (batch, labels) of both"
            )
        if not isinstance(self.loss, str):
            losses = self.loss_of(output, y, "none")
            if not bool(losses.isfinite().all()):
                bad = losses.detach()[~losses.isfinite()]
                raise UserError(
                    f"loss {self.name} returns {float(bad[0])} for {len(bad)} of {len(y)} examples of a first"
                    " batch; expected finite numbers"
                )
            if output.requires_grad and not losses.requires_grad:
                raise UserError(f"loss {self.name} has no gradient: compute it by torch from the output")
        self.right(output.detach(), y)

    def check_trained(self, output: Tensor, y: Tensor) -> None:
        """Check an output that weights are updated by: also warn if it looks like probabilities."""
        self.check_output(output, y)
        rows = output.detach()
        if self.has_classes and bool((rows >= 0).all()) and bool(((rows.sum(1) - 1).abs() < 1e-3).all()):
            warnings.warn("the model seems to return probabilities; pass logits (no softmax)", stacklevel=2)


PLAIN = Task()


@functools.cache  # so that no step copies them to the device
def _weights(values: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.tensor(values, device=device, dtype=dtype)


def recognised(output: Any) -> Any:
    """Return the tensor of logits in what a model returns; the output itself if there is none."""
    if isinstance(output, Tensor):
        return output
    if isinstance(getattr(output, "logits", None), Tensor):
        return output.logits
    if isinstance(output, Mapping):
        tensors = [value for value in output.values() if isinstance(value, Tensor)]
        named = [output[key] for key in ("logits", "out") if key in output]
        return next(iter(named or (tensors if len(tensors) == 1 else [output])))
    return output[0] if isinstance(output, (tuple, list)) and output else output


def _kind(value: Any) -> str:
    names = f" with {', '.join(map(str, value))}" if isinstance(value, Mapping) else ""
    return f"a {type(value).__name__}{names}"
