"""TRADES: clean cross-entropy plus the divergence under a ten-step attack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sora.curvature import precise
from sora.methods import Crafted, Hyper, Inputs, Method, ascend, cross_entropy, option, register

START = 0.001  # standard deviation of the start's noise, in input units


@dataclass(frozen=True)
class TRADESHyper(Hyper):
    """TRADES's hyper-parameters."""

    steps: int = option(10, "attack steps", low=1)
    alpha: float = option(0.25, "step size in multiples of eps", low=0)
    beta: float = option(6.0, "weight of the divergence", low=0)
    attack_mode: Literal["train", "eval"] = option("eval", "mode of BatchNorm and Dropout while crafting")


@register(
    "trades",
    "clean cross-entropy plus the divergence under a 10-step attack",
    paper="Zhang et al., Theoretically Principled Trade-off between Robustness and Accuracy",
    venue="ICML 2019",
    forwards="13",
    backwards="steps in + 1 (two graphs)",
    paper_cost="12 / 11",
    memory="two batches of activations",
    norms=("linf", "l2"),
    needs=("eval-mode craft",),
    has_pert_align=False,
)
class TRADES(Method):
    """`loss = CE(f(x), y) + beta mean KL(softmax f(x) || softmax f(x_adv))`; the attack ascends the KL."""

    hyper_class = TRADESHyper
    hyper: TRADESHyper

    def draw(self, x: Tensor) -> tuple[Tensor, ...]:
        """A little Gaussian noise: at x itself the divergence has no gradient."""
        return (torch.randn_like(x).mul_(START),)

    def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
        """Projected ascent on the divergence from the clean prediction."""
        x, threat = batch.x, self.threat
        with torch.no_grad():
            clean = model(x)
        length = self.hyper.alpha * threat.eps
        x_adv, _ = ascend(
            lambda logits: divergence(clean, logits).sum(),
            model,
            x,
            x + batch.noise[0],
            threat,
            self.hyper.steps,
            length,
            loss_scale=batch.loss_scale,
        )
        # Without `gradient`: the weights are not updated on x_adv alone, so PertAlign has no meaning.
        return Crafted(x_adv, step_size=length)

    def objective(self, model: nn.Module, logits: Tensor, batch: Inputs, crafted: Crafted) -> Tensor:
        """Clean cross-entropy plus the divergence, with gradients through both of its sides."""
        clean = model(batch.x)
        return cross_entropy(clean, batch.y) + self.hyper.beta * divergence(clean, logits).mean()


def divergence(clean: Tensor, other: Tensor) -> Tensor:
    """`KL(softmax(clean) || softmax(other))` of each example."""
    # Both sides as logarithms: the gradient through a probability that underflowed stays finite.
    p, q = precise(clean).log_softmax(1), precise(other).log_softmax(1)
    return F.kl_div(q, p, reduction="none", log_target=True).sum(1)
