"""What makes an accuracy meaningless: a model that returns no logits, an attack that breaks its rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from sora._checks import check_inputs, check_labels
from sora._passes import gradient_of
from sora._task import PLAIN, Task
from sora.errors import RunError, UserError
from sora.threat import Threat, flat_norm, unit

if TYPE_CHECKING:
    from sora.evaluation.scores import Evaluation

RANDOM = 1e-4  # difference of two passes, relative to the logits, of a random model (AutoAttack's limit)
TOLERANCE = 1e-4  # how far outside the ball or the box, relative to their size, is still rounding


class Void(Exception):
    """Gradients that are not finite stopped an attack: its result says nothing about robustness."""


class Invalid(RunError):
    """An attack returned invalid inputs: its own code is wrong."""


class AttackFailed(RunError):
    """Attacks whose own code is wrong, and what each did; `finished` has the results of all others."""

    def __init__(self, reasons: Sequence[str], finished: Sequence[Evaluation] = ()) -> None:
        super().__init__("; ".join(reasons))
        self.reasons, self.finished = list(reasons), list(finished)


class Inspection(NamedTuple):
    """What the first batch shows."""

    num_classes: int
    zero_gradients: float  # share of examples without an input gradient, on which gradient attacks fail
    nonnegative: bool  # whether no output is below zero, as after a softmax, a sigmoid or an exponential
    finite_gradients: bool  # an attack that meets input gradients that are not numbers has no valid result
    randomised: bool  # whether two passes over the same examples differ
    dynamic: bool  # whether a forward pass computes gradients or changes the model's parameters or buffers


def inspect_model(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    labels: Tensor,
    threat: Threat,
    num_classes: int | None = None,
    task: Task = PLAIN,
) -> Inspection:
    """Raise if an accuracy of this model, in evaluation mode, on this data would be meaningless.

    `x` and `y` are the first batch, `labels` all labels, `num_classes` that of the data, if known.
    """
    check_inputs(x, y, threat, task)
    given = x.clone()
    refused = f"the model does not accept inputs of shape {tuple(x.shape)}"
    with _as_user_error(refused), torch.no_grad(), _watching(model) as is_dynamic:
        logits = model(x)
    check_unchanged(given, x)
    answers_of(task, logits, y)
    task.check_output(logits, y)
    nonnegative = isinstance(task.loss, str) and bool((logits >= 0).all())
    if task.has_classes:
        if nonnegative and bool(((logits.sum(1) - 1).abs() < 1e-3).all()):
            raise UserError("the model returns probabilities, which hides gradients; remove its softmax")
        check_labels(logits, labels)
        if num_classes is not None and logits.shape[1] != num_classes:
            raise UserError(f"the model has {logits.shape[1]} classes, the data has {num_classes}")
    with _as_user_error("the model cannot be differentiated with respect to its inputs"):
        gradient, again = gradient_of(lambda output: task.loss_of(output, y), model, x)
    return Inspection(
        logits.shape[1] if task.has_classes and task.answers_classes else 2,
        zero_gradients=float((gradient.flatten(1) == 0).all(1).float().mean()),
        nonnegative=nonnegative,
        finite_gradients=bool(gradient.isfinite().all()),
        randomised=bool((relative_difference(logits, again) > RANDOM).any()),
        dynamic=is_dynamic(),
    )


def relative_difference(first: Tensor, second: Tensor) -> Tensor:
    """Return the distance between two outputs for each example, relative to their length, shape (B,)."""
    # As AutoAttack's check has it: both rows are brought to length one. On the CPU, since MPS has no float64.
    return flat_norm(unit(first.cpu().double()) - unit(second.cpu().double())).flatten()


@contextmanager
def _watching(model: nn.Module) -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether the block ran a backward pass, or anything changed the model."""
    unpacked = list[bool]()

    def versions() -> list[int]:  # how often each parameter and buffer was changed in place
        tensors = (*model.parameters(), *model.buffers())
        return [each._version for each in tensors if not each.is_inference()]

    def unpack(tensor: Tensor) -> Tensor:  # only a backward pass unpacks what autograd saved
        unpacked.append(True)
        return tensor

    before = versions()
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
        yield lambda: bool(unpacked) or versions() != before


def answers_of(task: Task, output: Tensor, y: Tensor) -> Tensor:
    """Return the answer to each example (`Task.answers`); raise for what cannot be an output."""
    if task.has_classes and (output.dim() != 2 or output.shape[1] < 2):
        task.check_output(output, y)
    if not bool((output < torch.inf).all()):
        raise UserError("the model returns NaN or infinity for some inputs; its accuracy is meaningless")
    return task.answers(output, y)


@contextmanager
def _as_user_error(message: str) -> Iterator[None]:
    """Turn torch's errors about shapes and graphs into one line."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise UserError(f"{message}: {str(error).strip().splitlines()[0]}") from error


@contextmanager
def finite_gradients(model: nn.Module, attack: str) -> Iterator[None]:
    """Raise `Void` after the block if any gradient with respect to the model's input was not finite.

    It hooks into the model and not into an attack, so it covers every attack, whoever wrote it. The flag
    stays on the device until the block ends.
    """
    flags = list[Tensor]()

    def note(gradient: Tensor) -> None:  # one flag, however many steps an attack makes
        flags[:] = [torch.stack([*flags, ~gradient.isfinite().all()]).any()]

    def attach(module: nn.Module, args: tuple[Any, ...]) -> None:
        if args and isinstance(args[0], Tensor) and args[0].requires_grad:
            args[0].register_hook(note)  # type: ignore[no-untyped-call]

    hook = model.register_forward_pre_hook(attach)
    try:
        yield
    finally:
        hook.remove()
    if any(flags):
        raise Void(
            f"{attack} encountered NaN or infinite input gradients, so it may fail although the model is"
            " not robust: its result is void"
        )


def check_attacked(attack: str, x: Tensor, x_adv: object, threat: Threat) -> None:
    """Raise `Invalid` if attacked inputs lie outside the ball around `x` or outside the box."""
    if not isinstance(x_adv, Tensor) or x_adv.shape != x.shape:
        shape = tuple(x_adv.shape) if isinstance(x_adv, Tensor) else type(x_adv).__name__
        raise Invalid(f"attack {attack} returned {shape}; expected inputs of shape {tuple(x.shape)}")
    if not bool(x_adv.isfinite().all()):
        raise Invalid(f"attack {attack} returned inputs that are NaN or infinite")
    # Rounding: of each pixel of x + delta, and summed up in l2.
    unit = torch.finfo(x.dtype).eps * max(1.0, float(x.abs().max()))
    slack = 4 * unit * (math.sqrt(x[0].numel()) if threat.norm == "l2" else 1.0)
    moved = float(threat.size(x_adv - x).max())
    if moved > threat.eps * (1 + TOLERANCE) + slack:
        raise Invalid(
            f"attack {attack} left the ball: it moved an input by {moved:.6g} in {threat.norm}, eps is"
            f" {threat.eps:.6g}"
        )
    if threat.box is not None:
        (low, high), (least, most) = threat.box, (float(x_adv.min()), float(x_adv.max()))
        # The examples themselves may be outside by rounding, and an attack may leave them as they are.
        room = max(TOLERANCE * (high - low), float(low - x.min()), float(x.max() - high))
        if least < low - room or most > high + room:
            raise Invalid(
                f"attack {attack} left the box: its inputs lie in [{least:.6g}, {most:.6g}], the box is"
                f" [{low:g}, {high:g}]"
            )


def check_unchanged(before: Tensor, after: Tensor) -> None:
    """Raise if the model changed its input in place, through `.data` for instance."""
    if not torch.equal(before, after):
        raise UserError(
            "the model changes its input in place, so that attacks and predictions refer to other images;"
            " let it work on a copy (x.clone())"
        )
