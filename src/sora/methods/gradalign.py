"""GradAlign: FGSM-RS with a penalty on misaligned input gradients at two nearby points."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from sora import curvature
from sora.methods import Crafted, Hyper, Inputs, gradient_of, option, register
from sora.methods._base import RandomStart


@dataclass(frozen=True)
class GradAlignHyper(Hyper):
    """GradAlign's hyper-parameters."""

    alpha: float = option(1.25, "step size in multiples of eps", low=0)
    lam: float = option(0.2, "weight of the regulariser (lambda)", low=0)
    lambda_rule: Literal["constant", "eps"] = option(
        "constant", "eps: lam * 10^((255 eps - 8) / 8), the authors' values by radius"
    )
    start: Literal["random", "zero"] = option("random", "attack from the noisy point, or from x (authors)")


@register(
    "gradalign",
    "FGSM-RS with a regulariser that aligns the gradients at x and at a random point nearby",
    group="one step, regularised",
    paper="Andriushchenko and Flammarion, Understanding and Improving Fast Adversarial Training",
    venue="NeurIPS 2020",
    forwards="3",
    backwards="2 in (one with graph) + 1 (second order)",
    paper_cost="3 / 2",
    cost=3.5,
    memory="2 graphs",
    needs=("second order",),
)
class GradAlign(RandomStart):
    """`loss = L(x_adv) + lambda Omega`, `Omega = 1 - mean cos(g1, g2)`: g1 at x, g2 at `s = box(x + eta)`."""

    hyper: GradAlignHyper

    def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
        """Take both gradients, the second with its graph, and one step from the attack's start point."""
        x, threat = batch.x, self.threat
        length = self.hyper.alpha * threat.eps
        noisy = x + batch.noise[0]
        from_noise = self.hyper.start == "random"
        start = threat.clamp(noisy) if from_noise else noisy  # authors: the noise is not clamped
        # g1 is a constant: its graph would double the cost and change little.
        g1, clean_logits = self.attack_gradient(model, x, batch.y, batch.loss_scale)
        loss, scale = partial(self.attack_loss, y=batch.y), batch.loss_scale
        g2, noisy_logits = gradient_of(loss, model, start, scale, create_graph=True)
        omega, lam = misalignment(g1, g2), self.hyper.lam
        if self.hyper.lambda_rule == "eps":
            lam *= math.pow(10.0, (255 * threat.eps - 8) / 8)
        g = g2.detach() if from_noise else g1
        logits, extras = noisy_logits if from_noise else clean_logits, {"omega": omega.detach()}
        x_adv = threat.projected_step(x, start - x if from_noise else 0.0, g, length)
        return Crafted(x_adv, g, logits=logits, penalty=lam * omega, step_size=length, extras=extras)


def misalignment(g1: Tensor, g2: Tensor) -> Tensor:
    """Return Omega: 1 minus the mean cosine over examples with two non-zero gradients, 0 without any."""
    cosines, defined = curvature.cosine(g1, g2)
    return torch.where(defined, 1.0 - cosines, 0.0).sum() / defined.sum().clamp(min=1)
