"""Checks of what an attack did: finite gradients, images inside the ball and the box, inputs left alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sora.errors import RunError, UserError
from sora.threat import Threat

if TYPE_CHECKING:
    from sora.evaluation.result import Evaluation

TOLERANCE = 1e-4  # how far outside the ball or the box, relative to their size, is still rounding


class Void(Exception):
    """Gradients that are not finite stopped an attack: its result says nothing about robustness."""


class Invalid(RunError):
    """An attack returned what no attack may return: its own code is wrong."""


class AttackFailed(RunError):
    """Attacks whose own code is wrong; the others of the evaluation have finished.

    Args:
        reasons: What each of them did.
        finished: The evaluations without these attacks; empty if there is no other result.
    """

    def __init__(self, reasons: Sequence[str], finished: Sequence[Evaluation] = ()) -> None:
        super().__init__("; ".join(reasons))
        self.reasons, self.finished = list(reasons), list(finished)


class AllVoid(UserError):
    """No attack of an evaluation has a valid result.

    Args:
        void: Each attack, and why it has none.
        versions: The code that each attack was run with.
    """

    def __init__(self, void: Mapping[str, str], versions: Mapping[str, dict[str, Any]]) -> None:
        super().__init__("; ".join(void.values()))
        self.void, self.versions = dict(void), dict(versions)


class GradientCheck:
    """Notes while a block runs whether any gradient with respect to the model's input is not finite.

    It hooks into the model and not into an attack, so it covers every attack, whoever wrote it. The flag
    stays on the device until it is read.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._flags: list[Tensor] = []

    def __enter__(self) -> GradientCheck:
        self._hook = self._model.register_forward_pre_hook(self._attach)
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()

    def raise_if_not_finite(self, attack: str) -> None:
        """Raise `Void` if a gradient was NaN or infinite."""
        if self._flags and bool(torch.stack(self._flags).any()):
            raise Void(
                f"{attack} encountered NaN or infinite input gradients, so it may fail although the model is"
                " not robust: its result is void"
            )

    def _attach(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if args and isinstance(args[0], Tensor) and args[0].requires_grad:
            args[0].register_hook(self._note)  # type: ignore[no-untyped-call]

    def _note(self, gradient: Tensor) -> None:
        self._flags.append(~gradient.isfinite().all())
        if len(self._flags) > 1:  # one flag, however many steps an attack makes
            self._flags = [torch.stack(self._flags).any()]


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
        low, high = threat.box
        # The examples themselves may be outside by rounding, and an attack may leave them as they are.
        room = max(TOLERANCE * (high - low), float(low - x.min()), float(x.max() - high))
        if float(x_adv.min()) < low - room or float(x_adv.max()) > high + room:
            raise Invalid(
                f"attack {attack} left the box: its inputs lie in [{float(x_adv.min()):.6g},"
                f" {float(x_adv.max()):.6g}], the box is [{low:g}, {high:g}]"
            )


def check_unchanged(before: Tensor, after: Tensor) -> None:
    """Raise if the model changed its input in place, through `.data` for instance."""
    if not torch.equal(before, after):
        raise UserError(
            "the model changes its input in place, so that attacks and predictions refer to other images;"
            " let it work on a copy (x.clone())"
        )
