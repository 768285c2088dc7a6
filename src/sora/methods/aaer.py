"""AAER: N-FGSM or FGSM-RS with a regulariser against adversarial examples that lower the loss."""

from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn

from sora._passes import precise
from sora.methods import Crafted, Inputs, Learned, Method, PenaltyHyper, option, register
from sora.threat import Threat

DEFAULTS = {  # of the hyper-parameters that depend on the variant
    "n": {"alpha": 1.0, "lambda2": 1.5, "lambda3": 0.15},
    "rs": {"alpha": 1.25, "lambda2": 2.5, "lambda3": 1.5},
}


@dataclass(frozen=True)
class AAERHyper(PenaltyHyper):
    """AAER's hyper-parameters; those that are none get the default of the variant."""

    variant: Literal["n", "rs"] = option("n", "attack of N-FGSM or of FGSM-RS")
    k: float = option(2.0, "variant n: noise radius in multiples of eps", low=0)
    alpha: float | None = option(None, "step size in multiples of eps; by default 1 (n), 1.25 (rs)", low=0)
    lambda1: float = option(1.0, "weight of the regulariser", low=0)
    lambda2: float | None = option(None, "weight of its loss term; by default 1.5 (n), 2.5 (rs)", low=0)
    lambda3: float | None = option(None, "weight of its logit term; by default 0.15 (n), 1.5 (rs)", low=0)
    detach_ce: bool = option(True, "the loss term carries no gradient (authors)")
    ramp_epochs: int = option(
        0, "epochs until the regulariser has its full weight (authors' long runs: 20)", low=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, default in DEFAULTS[self.variant].items():
            if getattr(self, name) is None:  # so that the stored settings show the value in use
                object.__setattr__(self, name, default)


@register(
    "aaer",
    "N-FGSM with a regulariser against adversarial examples whose loss is lower than at the start",
    group="one step, regularised",
    paper="Lin et al., Eliminating Catastrophic Overfitting Via Abnormal Adversarial Examples Regularization",
    venue="NeurIPS 2023",
    forwards="2",
    backwards="1 in + 1",
    pass_options=("strict",),
    paper_cost="2 / 2",
    cost=2,
)
class AAER(Method):
    """`loss = L(x_adv) + R`: R penalises abnormal examples, whose loss is lower at x_adv than at the start.

    `R = lambda1 n/m (lambda2 AAE_CE + lambda3 max(AAE_L2 - NAE_L2, 0))` for n abnormal (AAE) of m examples:
    AAE_CE is their mean fall in loss, AAE_L2 and NAE_L2 the mean squared changes of abnormal and normal
    examples' logits.

    Buffer: the regulariser's current `factor`.
    """

    hyper: AAERHyper
    factor: Tensor

    def __init__(self, threat: Threat, hyper: AAERHyper) -> None:
        super().__init__(threat, hyper)
        self.register_buffer("factor", torch.ones(()))

    def begin_epoch(self, epoch: int) -> None:
        """Set the weight of this epoch, if it is ramped up: 0 in the first one, as the authors do."""
        if self.hyper.ramp_epochs:
            self.factor.fill_(min((epoch - 1) / self.hyper.ramp_epochs, 1.0))

    def draw(self, x: Tensor) -> tuple[Tensor, ...]:
        """Draw noise inside the ball, of k times the radius for N-FGSM."""
        return (self.threat.random_start(x).mul_(self.hyper.k if self.hyper.variant == "n" else 1.0),)

    def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
        """Attack as the variant does, with the logits at its start point."""
        x, threat = batch.x, self.threat
        start = threat.clamp(x + batch.noise[0])
        g, logits = self.attack_gradient(model, start, batch.y, batch.loss_scale)
        length = cast(float, self.hyper.alpha) * threat.eps
        if self.hyper.variant == "rs":
            x_adv = threat.projected_step(x, start - x, g, length)
        else:
            x_adv = threat.step(start, g, length)
        return Crafted(x_adv, g, logits=logits, step_size=length)

    def objective(self, model: nn.Module, logits: Tensor, batch: Inputs, crafted: Crafted) -> Tensor:
        """Return the loss plus the regulariser."""
        start_logits, hyper = cast(Tensor, crafted.logits), self.hyper
        l0, l1 = (self.task.loss_of(z, batch.y, "none") for z in (start_logits, logits))
        distance = (precise(logits) - precise(start_logits)).square().flatten(1).sum(1)
        # Which examples are abnormal is decided with hard labels, as for the logged share of them.
        trained = self.train_loss(logits, batch.y, "none") if self.smoothing.smoothing else l1
        compared = l1.detach() if hyper.detach_ce else l1
        lambda2, lambda3 = cast(float, hyper.lambda2), cast(float, hyper.lambda3)
        penalty = regulariser(l0, compared, distance, lambda2, lambda3)
        return trained.mean() + self.factor * hyper.lambda1 * penalty

    def update_state(self, batch: Inputs, crafted: Crafted, learned: Learned) -> dict[str, Tensor]:
        """Log whether PertAlign is free of the regulariser."""
        return {"strict": torch.full((), float(self.hyper.strict), device=batch.x.device)}


def regulariser(l0: Tensor, l1: Tensor, distance: Tensor, lambda2: float, lambda3: float) -> Tensor:
    """Return `n/m (lambda2 AAE_CE + lambda3 max(AAE_L2 - NAE_L2, 0))`; 0 unless both groups have members.

    `l0` and `l1` are each example's losses at the attack's start and at the adversarial input, `distance` the
    squared l2 distance of its logits there.
    """
    abnormal = l0 > l1.detach()
    n, m = abnormal.sum(), len(l0)

    def mean(values: Tensor, group: Tensor) -> Tensor:
        return torch.where(group, values, 0.0).sum() / group.sum().clamp(min=1)

    fall = mean(l0 - l1, abnormal)
    excess = (mean(distance, abnormal) - mean(distance.detach(), ~abnormal)).clamp(min=0)
    return torch.where((n > 0) & (n < m), n / m * (lambda2 * fall + lambda3 * excess), 0.0)
