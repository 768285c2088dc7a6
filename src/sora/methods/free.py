"""Free AT: each batch is replayed m times, and one backward pass serves both weights and perturbation."""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from sora.errors import UserError
from sora.methods import Crafted, Hyper, Inputs, Learned, Method, option, register
from sora.threat import Threat


@dataclass(frozen=True)
class FreeHyper(Hyper):
    """Free AT's hyper-parameters."""

    replays: int = option(8, "times a batch is used, each with a weight update (m)", low=1)
    alpha: float = option(1.0, "step size in multiples of eps", low=0)


@register(
    "free",
    "each batch is replayed 8 times; each update's gradient is also the next attack step",
    group="several steps",
    paper="Shafahi et al., Adversarial Training for Free!",
    venue="NeurIPS 2019",
    forwards="8",
    backwards="8 (joint)",
    pass_options=("replays",),
    paper_cost="m / m",
    cost=8,
    memory="2 per row",
    needs=("setup",),
    uses_input_gradient=True,
    single_process=True,
)
class Free(Method):
    """`delta = clip(delta + eps sign(g))` after each update at `box(x + delta)`.

    Buffers: `delta` by row of the batch, not by example, kept over batches and epochs; the gradient of the
    previous replay, all zero before a batch's first; and which replay comes next.
    """

    hyper: FreeHyper
    delta: Tensor | None
    previous: Tensor
    replay: Tensor

    def __init__(self, threat: Threat, hyper: FreeHyper) -> None:
        super().__init__(threat, hyper)
        self.register_buffer("replay", torch.zeros((), dtype=torch.int64))
        self.register_buffer("delta", None)
        self.register_buffer("previous", None)

    @property
    def updates(self) -> int:
        """One weight update per replay."""
        return self.hyper.replays

    def setup(self, *, shape: tuple[int, ...], batch_size: int, **_: Any) -> None:
        """Allocate one row per example; the last batch of an epoch may have one more than the others."""
        self.delta = torch.zeros(batch_size + 1, *shape, device=self.replay.device)
        self.previous = torch.zeros_like(self.delta)

    def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
        """Use the perturbation of the last update, without a pass."""
        x, last = batch.x, batch.first_row + len(batch.x)
        if self.delta is None or last > len(self.delta):
            held = 0 if self.delta is None else len(self.delta)
            raise UserError(f"free holds {held} rows, the batch has {last}; call setup(batch_size=...) first")
        rows = slice(batch.first_row, last)
        # The perturbation of a row comes from another image, so x + delta may leave the box.
        x_adv = self.threat.clamp(x + self.delta[rows].to(x.dtype))
        previous = self.previous[rows].clone()  # `update_state` overwrites it before it is compared
        return Crafted(x_adv, previous, step_size=self.hyper.alpha * self.threat.eps)

    def update_state(self, batch: Inputs, crafted: Crafted, learned: Learned) -> dict[str, Tensor]:
        """Step the perturbation along the gradient of the weight update, projected onto ball and box."""
        x, threat, g = batch.x, self.threat, cast(Tensor, learned.gradient)
        rows = slice(batch.first_row, batch.first_row + len(x))
        delta = cast(Tensor, self.delta)[rows]
        delta.copy_(threat.projected_step(x, delta, g, self.hyper.alpha * threat.eps) - x)
        # PertAlign compares replays of one batch: the last one stores nothing for the next batch.
        last = self.replay == self.hyper.replays - 1
        self.previous[rows] = torch.where(last, 0.0, g)
        self.replay.add_(self.ends_batch).remainder_(self.hyper.replays)
        return {}
