"""AAER: N-FGSM or FGSM-RS with a regulariser against abnormal adversarial examples, whose loss falls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn

from sora._passes import cross_entropy, input_gradient
from sora._typed import option
from sora.curvature import precise
from sora.methods import _base
from sora.methods._base import Crafted, Inputs, Learned, Method
from sora.methods._registry import register
from sora.threat import Threat

DEFAULTS = {
    "n": {"alpha": 1.0, "lambda2": 1.5, "lambda3": 0.15},
    "rs": {"alpha": 1.25, "lambda2": 2.5, "lambda3": 1.5},
}


@dataclass(frozen=True)
class Hyper(_base.Hyper):
    """AAER's hyper-parameters; those that are none get the variant's own."""

    variant: Literal["n", "rs"] = option("n", "attack of N-FGSM or of FGSM-RS")
    k: float = option(2.0, "variant n: noise radius in multiples of eps", low=0)
    alpha: float = option(None, "step size in multiples of eps; none: 1 (n), 1.25 (rs)", low=0)
    lambda1: float = option(1.0, "weight of the regulariser", low=0)
    lambda2: float = option(None, "weight of its loss term; none: 1.5 (n), 2.5 (rs)", low=0)
    lambda3: float = option(None, "weight of its logit term; none: 0.15 (n), 1.5 (rs)", low=0)
    detach_ce: bool = option(True, "the loss term carries no gradient (authors)")
    ramp_epochs: int = option(0, "epochs to the regulariser's full weight; authors' long runs: 20", low=0)
    strict: bool = option(False, "PertAlign from the cross-entropy alone, for another backward pass")

    def __post_init__(self) -> None:
        for name, value in DEFAULTS.get(self.variant, {}).items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        super().__post_init__()


@register(
    "aaer",
    "N-FGSM with a regulariser against adversarial examples whose loss is lower than at the start",
    paper="Lin et al., Eliminating Catastrophic Overfitting Via Abnormal Adversarial Examples Regularization",
    venue="NeurIPS 2023",
    forwards="2",
    backwards="1 in + 1",
    paper_cost="2 / 2",
)
class AAER(Method):
    """`loss = L(x_adv) + R`: R weighs the examples whose loss is lower at x_adv than at the start point.

    Buffer: the regulariser's current `factor`.
    """

    hyper_class = Hyper
    hyper: Hyper
    factor: Tensor

    def __init__(self, threat: Threat, hyper: Hyper) -> None:
        super().__init__(threat, hyper)
        self.strict_gradient = hyper.strict
        self.register_buffer("factor", torch.ones(()))

    def begin_epoch(self, epoch: int) -> None:
        """The weight of this epoch where it is ramped up."""
        if self.hyper.ramp_epochs:
            self.factor.fill_(min(epoch / self.hyper.ramp_epochs, 1.0))

    def draw(self, x: Tensor) -> tuple[Tensor, ...]:
        """Noise inside the ball, k times as wide for N-FGSM."""
        return (self.threat.random_start(x).mul_(self.hyper.k if self.hyper.variant == "n" else 1.0),)

    def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
        """The attack of the variant; the logits at its start point are kept."""
        x, threat = batch.x, self.threat
        start = threat.clamp(x + batch.noise[0])
        g, logits = input_gradient(model, start, batch.y, batch.loss_scale)
        length = self.hyper.alpha * threat.eps
        if self.hyper.variant == "rs":
            x_adv = threat.ascend(x, start, g, length)
        else:
            x_adv = threat.clamp(start + threat.direction(g) * length)
        return Crafted(x_adv, g, logits=logits, step_size=self.steps_of(self.hyper.alpha, x))

    def objective(self, model: nn.Module, logits: Tensor, batch: Inputs, crafted: Crafted) -> Tensor:
        """Cross-entropy plus the regulariser."""
        start_logits, hyper = cast(Tensor, crafted.logits), self.hyper
        l0, l1 = (cross_entropy(z, batch.y, "none") for z in (start_logits, logits))
        distance = (precise(logits) - precise(start_logits)).square().sum(1)
        compared = l1.detach() if hyper.detach_ce else l1
        penalty = regulariser(l0, compared, distance, hyper.lambda2, hyper.lambda3)
        return l1.mean() + self.factor * hyper.lambda1 * penalty

    def observe(self, batch: Inputs, crafted: Crafted, learned: Learned) -> dict[str, Tensor]:
        """The share of abnormal examples, and whether PertAlign is free of the regulariser."""
        start_logits = cast(Tensor, crafted.logits)
        l0, l1 = (cross_entropy(z, batch.y, "none") for z in (start_logits, learned.logits))
        share = (l0 > l1).float().mean()
        return {"aae_share": share, "strict": torch.full_like(share, float(self.hyper.strict))}


def regulariser(l0: Tensor, l1: Tensor, distance: Tensor, lambda2: float, lambda3: float) -> Tensor:
    """`n/m (lambda2 AAE_CE + lambda3 max(AAE_L2 - NAE_L2, 0))`, and 0 unless both groups have a member.

    Args:
        l0: Each example's loss at the attack's start point.
        l1: Its loss at the adversarial input; an example is abnormal (AAE) if this is lower.
        distance: Squared l2 distance of its logits at the two points.
        lambda2: Weight of the abnormal examples' fall in loss.
        lambda3: Weight of the excess of their logit distance over that of the normal ones (NAE).
    """
    abnormal = l0 > l1.detach()
    n, m = abnormal.sum(), len(l0)

    def mean(values: Tensor, group: Tensor) -> Tensor:
        return torch.where(group, values, 0.0).sum() / group.sum().clamp(min=1)

    fall = mean(l0 - l1, abnormal)
    excess = (mean(distance, abnormal) - mean(distance.detach(), ~abnormal)).clamp(min=0)
    return torch.where((n > 0) & (n < m), n / m * (lambda2 * fall + lambda3 * excess), 0.0)
