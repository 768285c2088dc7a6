"""Checks of the inputs of methods and attacks.

They read tensor values on the host, which waits for the device, so a training step runs them only for the
first batch of each shape; `outside_box` checks later batches on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sora.errors import RunError, UserError, short
from sora.threat import Threat

if TYPE_CHECKING:
    from sora._task import Task

TOLERANCE = 1e-4  # how far rounding may move a pixel outside the box


def check_model(model: object) -> None:
    """Raise if this is not a model."""
    if not isinstance(model, nn.Module):
        raise UserError(f"model is {short(model)}; expected a torch.nn.Module from inputs to logits")


def check_threat(threat: object) -> None:
    """Raise if this is not a threat model."""
    if not isinstance(threat, Threat):
        raise UserError(f"threat is {short(threat)}; expected sora.Linf(eps) or sora.L2(eps)")


def check_inputs(x: Tensor, y: Tensor, threat: Threat, task: Task) -> None:
    """Raise if a batch is not valid input for a method or an attack."""
    check_threat(threat)
    for what, tensor in (("inputs", x), ("labels", y)):
        if not isinstance(tensor, Tensor):
            raise UserError(f"{what} are {type(tensor).__name__}; expected a torch.Tensor")
    if not x.is_floating_point():
        raise UserError(f"inputs are {x.dtype}; expected floats: divide uint8 images by 255")
    if x.dim() < 2 or x.numel() == 0:
        raise UserError(
            f"inputs have shape {tuple(x.shape)}; expected a batch (B, ...) with at least one value"
        )
    task.check_targets(x, y)
    if x.device != y.device:
        raise UserError(f"inputs are on {x.device}, labels on {y.device}; move them to one device")
    if not bool(x.isfinite().all()):
        raise UserError("inputs contain NaN or infinity; clean the data first")
    if threat.box is not None:
        low, high = float(x.min()), float(x.max())
        if low < threat.box[0] - TOLERANCE or high > threat.box[1] + TOLERANCE:
            raise UserError(
                f"inputs lie in [{low:.3g}, {high:.3g}], outside the box {threat.box}; pass un-normalised"
                " images (normalise inside the model), or box=None for data without a pixel range"
            )


def has_integers(tensor: Tensor) -> bool:
    """Return whether a tensor holds integers, as labels must."""
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def outside_box(x: Tensor, threat: Threat) -> Tensor:
    """Return 1 for a batch outside the box or not finite, else 0, as a tensor: the host does not wait."""
    low, high = x.detach().aminmax()  # both are NaN if any value is
    if threat.box is None:
        inside = low.isfinite() & high.isfinite()
    else:
        inside = (low >= threat.box[0] - TOLERANCE) & (high <= threat.box[1] + TOLERANCE)
    return (~inside).float()


def check_labels(logits: Tensor, y: Tensor) -> None:
    """Raise if a model's output does not match the labels."""
    if logits.dim() != 2 or logits.shape[1] < 2:
        hint = "it must return logits of shape (batch, classes), or pass a loss of your own (loss=fn)"
        if logits.shape in (y.shape[:1], (len(logits), 1)):
            hint = "one logit: use loss='binary' or two logits"
        raise UserError(f"the model returns shape {tuple(logits.shape)}; {hint}")
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= logits.shape[1]:
        raise UserError(
            f"labels run from {low} to {high}, but the model has {logits.shape[1]} classes: 0 to"
            f" {logits.shape[1] - 1}"
        )


def check_gradients(model: nn.Module) -> None:
    """Raise if a training step has left every parameter without a gradient; reads no values."""
    if not any(parameter.requires_grad and parameter.grad is not None for parameter in model.parameters()):
        raise UserError("no parameter got a gradient: all are frozen, or the logits do not depend on them")


@contextmanager
def checking(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    threat: Threat,
    task: Task,
    *,
    check: Callable[[Tensor, Tensor], None] | None = None,
    done: set[object] | None = None,
    also: object = None,
) -> Iterator[None]:
    """Check a batch now, and the output of the bare model when the block first calls it.

    Inside the block the model returns what the task reads from its output; `check` is the task's by default.
    With `done`, the batches checked so far, only the first batch of each shape, type and `also` is checked.
    """
    key = (x.shape, x.dtype, also) if isinstance(x, Tensor) else None
    check_model(model)
    if done is not None and key in done:
        with task.reading(model):
            yield
        return
    check_inputs(x, y, threat, task)
    entered = left = False

    def enter(module: nn.Module, args: Any) -> None:
        nonlocal entered
        entered = True

    def leave(module: nn.Module, args: Any, logits: Tensor) -> None:
        nonlocal left
        if not left:
            (check or task.check_output)(logits, y)
            left = True

    handles = [model.register_forward_pre_hook(enter)]
    try:
        with task.reading(model):
            handles.append(model.register_forward_hook(leave))
            yield
    except (torch.OutOfMemoryError, RunError):
        raise
    except RuntimeError as error:
        out_of_memory = "out of memory" in str(error)  # not every device has an exception of its own for it
        if left or not entered or out_of_memory:
            raise
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UserError(f"the model does not accept inputs of shape {tuple(x.shape)}: {reason}") from error
    finally:
        for handle in handles:
            handle.remove()
    if done is not None:
        done.add(key)
