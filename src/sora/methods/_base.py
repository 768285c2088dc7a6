"""One training step: craft, learn, observe. Every method fills in these three and nothing else.

`step` is what a training loop calls. It adds to the parameters' gradients and never zeroes them, never
steps an optimiser and, after the input check of a shape's first batch, never waits for the device.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from sora import curvature
from sora._checks import check_inputs, check_logits
from sora._modes import evaluating
from sora._passes import Scale, bare, cross_entropy, scaled, unscaled
from sora._typed import Options, option
from sora.threat import Threat


@dataclass(frozen=True)
class Inputs:
    """What one step gets: the batch, what is known about it, and the noise to use."""

    x: Tensor
    y: Tensor
    noise: tuple[Tensor, ...]
    index: Tensor | None = None
    transform: Any = None
    loss_scale: Scale = None


class Crafted(NamedTuple):
    """What the craft pass leaves behind for the other two."""

    x_adv: Tensor
    gradient: Tensor | None = None  # g, at the attack's start point
    second: Tensor | None = None  # replaces g' where the paper compares two attack gradients
    logits: Tensor | None = None  # at the start point, detached
    penalty: Tensor | None = None  # added to the loss, may carry a graph
    step_size: Tensor | None = None
    extras: Mapping[str, Tensor] = MappingProxyType({})  # for `observe` and the log


class Learned(NamedTuple):
    """What the weight update's pass leaves behind: the loss in its graph, logits, free input gradient."""

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


@dataclass(frozen=True)
class Hyper(Options):
    """Hyper-parameters that every method has."""

    attack_mode: Literal["train", "eval"] = option("train", "mode of BatchNorm and Dropout while crafting")


class Method(nn.Module, ABC):
    """A training method: what it remembers between batches lives in buffers.

    Args:
        threat: The norm ball and the box.
        hyper: Its hyper-parameters, an instance of `hyper_class`.
    """

    hyper_class: ClassVar[type[Hyper]] = Hyper
    updates: int = 1  # weight updates a batch; the caller repeats `step` as often
    needs_gradient: ClassVar[bool] = False  # the method itself uses g', observed or not
    compilable: ClassVar[bool] = False  # `craft` is a function of tensors that `torch.compile` can take whole
    one_process: ClassVar[bool] = False  # its memory is of the batches that one process saw
    aligned: ClassVar[bool] = True  # it has a PertAlign, which the guard listens to
    only_attacks: ClassVar[bool] = True  # all of `craft` runs in the attack's mode; else it says where itself
    strict_gradient: bool = False  # g' of the cross-entropy alone, at the price of another backward pass

    def __init__(self, threat: Threat, hyper: Hyper) -> None:
        super().__init__()
        self.threat = threat
        self.hyper = hyper
        self.observing = True
        self._checked: set[tuple[torch.Size, torch.dtype]] = set()

    # What a method may override, in the order a batch meets it.

    def bind(
        self,
        *,
        n_train: int,
        shape: tuple[int, ...],
        batch_size: int,
        epochs: int,
        steps_per_epoch: int,
        canvas: tuple[int, ...] | None = None,
    ) -> None:
        """Told once, where a method needs sizes: after `.to(device)`, before `load_state_dict`.

        Args:
            n_train: Images in the training set.
            shape: Of one training input, as the model sees it.
            batch_size: Inputs of a batch; an epoch's last one may have one more, or fewer.
            epochs: Of the whole training.
            steps_per_epoch: Batches an epoch.
            canvas: Shape of an image on the padded canvas that augmentation crops; `shape` if none is padded.
        """

    def begin_epoch(self, epoch: int) -> None:
        """Told before each epoch, counted from 1, where a method has a schedule."""

    def draw(self, x: Tensor) -> tuple[Tensor, ...]:
        """All the randomness of one step, in the form that `step(noise=...)` takes."""
        return ()

    @abstractmethod
    def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
        """The input to train on. Must not fill any parameter's `.grad`."""

    def objective(self, model: nn.Module, logits: Tensor, batch: Inputs, crafted: Crafted) -> Tensor:
        """The loss to minimise, given the logits at the crafted input."""
        return cross_entropy(logits, batch.y)

    def observe(self, batch: Inputs, crafted: Crafted, learned: Learned) -> dict[str, Tensor]:
        """Update what the method remembers; return extra numbers worth logging."""
        return {}

    # The skeleton, the same for all.

    def step(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        *,
        index: Tensor | None = None,
        transform: Any = None,
        noise: Tensor | tuple[Tensor, ...] | None = None,
        loss_scale: Scale = None,
    ) -> StepOutput:
        """Craft an adversarial batch and add its gradients to the model's parameters.

        Args:
            model: From inputs to logits, in the mode the weights should be trained in.
            x: Inputs inside the box, shape (B, ...).
            y: Class labels, shape (B,).
            index: Each example's position in the training set, for methods with a memory per image.
            transform: The augmentation that produced `x`, for the same methods.
            noise: What `draw(x)` returns, to replace the method's own randomness.
            loss_scale: Factor on the loss in both passes, for float16; gradients the method uses itself
                are divided by it again.
        """
        with self._checking(model, x, y):
            noise = self.draw(x) if noise is None else (noise,) if isinstance(noise, Tensor) else noise
            batch = Inputs(x, y, noise, index, transform, loss_scale)
            with self.attacking(bare(model), self.only_attacks):
                crafted = self.craft(bare(model), batch)
            learned = self.learn(model, batch, crafted)
        with torch.no_grad():
            return self._output(batch, crafted, learned)

    def learn(self, model: nn.Module, batch: Inputs, crafted: Crafted) -> Learned:
        """The weight update's pass: its backward also yields the input gradient g', which is the free one."""
        compared = self.observing and crafted.gradient is not None and crafted.second is None
        wanted = compared or self.needs_gradient
        leaf, scale = crafted.x_adv.detach().requires_grad_(wanted), batch.loss_scale
        gradient: Tensor | None = None
        with torch.enable_grad():
            logits = model(leaf)
            loss = self.objective(model, logits, batch, crafted)
            if crafted.penalty is not None:
                loss = loss + crafted.penalty
            if wanted and self.strict_gradient:
                plain = scaled(cross_entropy(logits, batch.y), scale)
                (gradient,) = torch.autograd.grad(plain, leaf, retain_graph=True)
            scaled(loss, scale).backward()  # type: ignore[no-untyped-call]
        gradient = leaf.grad if gradient is None else gradient
        return Learned(
            loss.detach(), logits.detach(), None if gradient is None else unscaled(gradient, scale)
        )

    def _output(self, batch: Inputs, crafted: Crafted, learned: Learned) -> StepOutput:
        extras = {**crafted.extras, **self.observe(batch, crafted, learned)}
        nan = torch.full((), math.nan, device=batch.x.device)
        g, g_adv = crafted.gradient, learned.gradient if crafted.second is None else crafted.second
        if not self.observing or g is None or g_adv is None:
            align = linearity = nan
        else:
            extras["zero_gradient"] = (g == 0).float().mean()  # pixels the attack cannot move
            align = curvature.pert_align(g, g_adv)
            linearity = curvature.linearity(g, g_adv, self.threat.norm)
        return StepOutput(
            loss=learned.loss,
            accuracy=(learned.logits.argmax(1) == batch.y).float().mean(),
            pert_align=align,
            linearity=linearity,
            step_size=nan if crafted.step_size is None else crafted.step_size,
            x_adv=crafted.x_adv,
            logits=learned.logits,
            extras=extras,
        )

    def attacking(self, model: nn.Module, active: bool = True) -> AbstractContextManager[None]:
        """The mode in which attack passes run, inside the block."""
        return evaluating(model, active and self.hyper.attack_mode == "eval")

    def steps_of(self, multiple: float, x: Tensor) -> Tensor:
        """A step size given in multiples of eps, as the tensor that is logged."""
        return torch.full((), multiple * self.threat.eps, device=x.device)

    @contextmanager
    def _checking(self, model: nn.Module, x: Tensor, y: Tensor) -> Iterator[None]:
        """On the first batch of a shape, check inputs now and labels once the first logits exist."""
        key = (x.shape, x.dtype)
        if key in self._checked:
            yield
            return
        check_inputs(x, y, self.threat)
        handle = bare(model).register_forward_hook(lambda module, args, logits: check_logits(logits, y))
        try:
            yield
            self._checked.add(key)
        finally:
            handle.remove()
