"""What a training method is made of: registry entry, hyper-parameters, targets, and the data of one step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from sora._passes import Scale, precise
from sora._registry import Entry
from sora._typed import LabelOptions, Options, option

if TYPE_CHECKING:
    from sora.methods._base import Method


# The groups in which methods are listed, and what to expect of them.
GROUPS = {
    "ordinary training": "no attack and no robustness, for comparison",
    "one step": "the cheapest; most can overfit catastrophically at larger radii",
    "one step, regularised": "an extra loss term; most need more passes",
    "one step, with a memory": "starts from stored perturbations of earlier batches",
    "several steps": "slow, with the strongest attacks while training",
}


@dataclass(frozen=True)
class MethodInfo(Entry):
    """A registry entry: all that the rest of the package needs to know about a method."""

    cls: type[Method]
    group: str = "others"  # what it is listed under, one of `GROUPS` or a name of its own
    paper: str = ""  # authors and title
    venue: str = ""  # where it was published, ending in the year
    forwards: str = ""  # passes over one batch in one step
    backwards: str = ""  # the same; `in` marks those to the input only
    pass_options: tuple[str, ...] = ()  # hyper-parameters that change the number of passes
    cost: float | None = None  # passes at the logits in multiples of ordinary training's, without rare ones
    paper_cost: str = "-"  # forward and backward passes as the SORA paper counts them; - if it does not
    memory: str = "-"  # beyond ordinary training: graphs (activations of a batch), stored perturbations
    norms: tuple[str, ...] = ("linf",)  # that it is defined for
    needs: tuple[str, ...] = ()  # what a training loop must provide, and other unusual requirements
    uses_input_gradient: bool = False  # of the weight update, even if `observing` is off
    compilable: bool = False  # `torch.compile` can trace `craft` and `objective`, functions of tensors
    uses_epochs: tuple[str, ...] = ()  # hyper-parameters that use their number: off in runs to be extended
    single_process: bool = False  # it stores what one process saw, so it cannot train in several
    has_pert_align: bool = True  # of its own steps; otherwise the guard looks at a few held-out images
    adversarial: bool = True  # it trains against an attack; otherwise a guard has no robustness to watch
    own_targets: str = ""  # the hyper-parameter that sets its targets; label smoothing must then be off
    needs_classes: bool = False  # it uses class probabilities, as methods with `own_targets` do
    crafts_in_attack_mode: bool = True  # all of `craft`; otherwise it switches modes itself
    family: str = ""  # the method whose hyper-parameters it has: a preset's base method, else its own name
    preset: Mapping[str, Any] = field(default_factory=dict)  # hyper-parameters that a preset changes
    in_all: bool = True  # whether `--methods all` includes it


@dataclass(frozen=True)
class Hyper(Options):
    """Hyper-parameters that every method has; a method's own class inherits from this one."""

    attack_mode: Literal["train", "eval"] = option("train", "mode of BatchNorm and Dropout during the attack")


@dataclass(frozen=True)
class PenaltyHyper(Hyper):
    """Hyper-parameters of methods whose loss has a penalty: a class to inherit from."""

    strict: bool = option(
        False, "PertAlign from the cross-entropy alone, at the cost of another backward pass"
    )


Kind = Literal["uniform", "others", "random"]


@dataclass(frozen=True)
class Smoothing(LabelOptions):
    """The cross-entropy with these labels."""

    def targets(self, logits: Tensor, y: Tensor, *, attack: bool = False) -> Tensor:
        """Return the targets of the attack or of the weight update: labels, or rows of probabilities."""
        if self.smoothing == 0 or (attack and not self.smooth_attack):
            return y  # one-hot rows would differ in the last bit
        return soft_targets(logits, y, self.smoothing, self.smoothing_kind)


def soft_targets(logits: Tensor, y: Tensor, amount: float | Tensor, kind: Kind) -> Tensor:
    """Return rows of probabilities, shaped like the logits and in at least float32.

    Args:
        logits: Gives the number of classes, the number format and the device.
        y: Class labels, shape (B,).
        amount: Share of probability taken from the true class.
        kind: `uniform` spreads it over all classes (`S_u`), `others` equally over the other classes (`S_o`
            with phi = 1 - amount), `random` with fresh random weights over the other classes (`S_r`).
    """
    like, classes = precise(logits.detach()), logits.shape[1]
    true = (y.unsqueeze(1) == torch.arange(classes, device=y.device)).to(like.dtype)
    if kind == "uniform":
        return true * (1 - amount) + amount / classes
    weights = 1 - true
    if kind == "random":
        weights = weights * (1 - torch.rand_like(like))  # never 0, so that the sum never is
    # With a single class there are no others, and their share is lost.
    share = weights / weights.sum(1, keepdim=True).clamp(min=torch.finfo(like.dtype).tiny)
    return true * (1 - amount) + amount * share


@dataclass(frozen=True)
class Inputs:
    """The input of one step: the batch, what is known about it, and the noise to use.

    Attributes:
        x: Inputs inside the box, shape (B, ...), as augmented.
        y: Targets of the loss: by default class labels, shape (B,).
        noise: What the method's `draw(x)` returned, or the caller's replacement; `()` if it draws nothing.
        index: Each example's position in the training set, shape (B,); None if the loop does not pass it.
        transform: The augmentation that produced `x`, a `sora.data.Transform`; None if it is not passed.
        loss_scale: Factor on the loss in float16; pass it to `input_gradient`. None: no scaling.
        first_row: Position of the first example in its batch, above 0 in later parts of a batch.
    """

    x: Tensor
    y: Tensor
    noise: tuple[Tensor, ...]
    index: Tensor | None = None
    transform: Any = None
    loss_scale: Scale = None
    first_row: int = 0


class Crafted(NamedTuple):
    """The result of `craft`: the adversarial batch and what later parts of the step need.

    Attributes:
        x_adv: The input to train on, shaped like `x`; detached before use.
        gradient: g, the input gradient at the attack's start. PertAlign and linearity compare it with g',
            the input gradient of the training loss at `x_adv`; None if the method has no such pair.
        second: Replaces g' where the paper compares two gradients of the attack.
        logits: At the start point, detached; with them the share of abnormal examples is logged.
        penalty: A scalar added to the loss; it may carry a graph.
        step_size: Length of the attack's step, for the log (`alpha` on the console).
        extras: Scalars for `update_state` and, under their names, for the log.
        kept: Other tensors that `objective` and `update_state` need; they may carry a graph.
    """

    x_adv: Tensor
    gradient: Tensor | None = None
    second: Tensor | None = None
    logits: Tensor | None = None
    penalty: Tensor | None = None
    step_size: Tensor | float | None = None
    extras: Mapping[str, Tensor] = MappingProxyType({})
    kept: tuple[Tensor, ...] = ()


class Learned(NamedTuple):
    """The result of `learn`: loss, logits and the free input gradient g', all detached."""

    loss: Tensor
    logits: Tensor
    gradient: Tensor | None


class StepOutput(NamedTuple):
    """The numbers of one step, as tensors on the device; NaN where a method does not define them."""

    loss: Tensor
    accuracy: Tensor
    pert_align: Tensor
    linearity: Tensor
    step_size: Tensor
    x_adv: Tensor
    logits: Tensor
    extras: dict[str, Tensor]

    def __repr__(self) -> str:
        """Show numbers by value, other tensors by shape. It waits for the device, a step does not."""
        values = {name: getattr(self, name) for name in self._fields if name != "extras"} | self.extras
        return f"{type(self).__name__}({', '.join(f'{name}={_short(t)}' for name, t in values.items())})"


def _short(tensor: Tensor) -> str:
    if tensor.numel() == 1:
        return f"{tensor.item():.4g}"
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
