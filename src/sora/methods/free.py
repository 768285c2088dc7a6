"""Free AT: each batch is replayed m times, and one backward pass serves both weights and perturbation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from sora._typed import option
from sora.errors import UserError
from sora.methods import _base
from sora.methods._base import Crafted, Inputs, Learned, Method
from sora.methods._registry import register
from sora.threat import Threat


@dataclass(frozen=True)
class Hyper(_base.Hyper):
    """Free AT's hyper-parameters."""

    replays: int = option(8, "times a batch is used, each with a weight update (m)", low=1)
    alpha: float = option(1.0, "step size in multiples of eps", low=0)


@register(
    "free",
    "each batch is replayed 8 times; the gradient of an update is the next one's attack",
    paper="Shafahi et al., Adversarial Training for Free!",
    venue="NeurIPS 2019",
    forwards="8",
    backwards="8 (joint)",
    paper_cost="m / m",
    memory="two batches: the perturbation, the last gradient",
    needs=("bind",),
)
class Free(Method):
    """`delta = clip(delta + eps sign(g))` after each update at `box(x + delta)`.

    Buffers: `delta` by row of the batch, not by example, kept over batches and epochs; the gradient of the
    previous replay, all zero before a batch's first; and which replay comes next.
    """

    hyper_class = Hyper
    hyper: Hyper
    one_process = True
    needs_gradient = True
    delta: Tensor | None
    previous: Tensor
    replay: Tensor

    def __init__(self, threat: Threat, hyper: Hyper) -> None:
        super().__init__(threat, hyper)
        self.updates = hyper.replays
        self.register_buffer("replay", torch.zeros((), dtype=torch.int64))
        self.register_buffer("delta", None)
        self.register_buffer("previous", None)

    def bind(self, *, shape: tuple[int, ...], batch_size: int, **_: Any) -> None:
        """Allocate a row for each example; an epoch's last batch may have one more than the others."""
        self.delta = torch.zeros(batch_size + 1, *shape, device=self.replay.device)
        self.previous = torch.zeros_like(self.delta)

    def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
        """No pass at all: the perturbation is what the last update left behind."""
        x, rows = batch.x, len(batch.x)
        if self.delta is None or rows > len(self.delta):
            held = 0 if self.delta is None else len(self.delta)
            raise UserError(f"free holds {held} rows, the batch has {rows}; call bind(batch_size=...) first")
        # A row's perturbation belongs to the batch before and may leave this one's box.
        x_adv = self.threat.clamp(x + self.delta[:rows].to(x.dtype))
        previous = self.previous[:rows].clone()  # `observe` writes over it before it is compared
        return Crafted(x_adv, previous, step_size=self.steps_of(self.hyper.alpha, x))

    def observe(self, batch: Inputs, crafted: Crafted, learned: Learned) -> dict[str, Tensor]:
        """Move the perturbation along the update's own gradient, into the ball and the box."""
        x, threat, g = batch.x, self.threat, cast(Tensor, learned.gradient)
        delta = cast(Tensor, self.delta)[: len(x)]
        step = threat.direction(g) * (self.hyper.alpha * threat.eps)
        delta.copy_(threat.inside(x, delta + step) - x)
        # PertAlign compares replays of one batch: the last one leaves nothing for the next batch.
        last = self.replay == self.hyper.replays - 1
        self.previous[: len(x)] = torch.where(last, 0.0, g)
        self.replay.add_(1).remainder_(self.hyper.replays)
        return {}
