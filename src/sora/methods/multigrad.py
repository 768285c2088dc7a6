"""MultiGrad: step only where the gradients at several random points have the same sign."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sora.errors import UserError
from sora.methods import Crafted, Hyper, Inputs, Method, option, register


@dataclass(frozen=True)
class MultiGradHyper(Hyper):
    """MultiGrad's hyper-parameters."""

    copies: int = option(3, "random points at which the gradient is taken (N)", low=1)
    alpha: float = option(2.0, "step size in multiples of eps", low=0)
    agree: int | None = option(None, "copies that must have the same sign; all by default", low=1)
    parallel: bool = option(True, "all copies in one pass; otherwise one by one, with less memory")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.agree is not None and self.agree > self.copies:
            raise UserError(f"{self.prefix}agree is {self.agree}; allowed: 1 to copies ({self.copies})")


@register(
    "multigrad",
    "one step where the gradients at 3 random points agree in sign",
    group="one step",
    paper="Golgooni et al., ZeroGrad: Costless Conscious Remedies for Catastrophic Overfitting in the FGSM"
    " Adversarial Training",
    venue="Intelligent Systems with Applications 2023",
    forwards="4",
    backwards="3 in + 1",
    pass_options=("copies",),
    paper_cost="2 / 2",
    cost=4,
    memory="2 graphs",
)
class MultiGrad(Method):
    """`x_adv = box(x + clip(alpha m))`, m the common sign of the N gradients at `box(x + eta_k)`, else 0."""

    hyper: MultiGradHyper

    def draw(self, x: Tensor) -> tuple[Tensor, ...]:
        """Draw N independent noises inside the ball."""
        return tuple(self.threat.random_start(x) for _ in range(self.hyper.copies))

    def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
        """Take one step from the clean input: the noise only determines where gradients are taken."""
        x, threat, hyper = batch.x, self.threat, self.hyper
        length = hyper.alpha * threat.eps
        starts = [threat.clamp(x + eta) for eta in batch.noise]
        if hyper.parallel:
            y = torch.cat((batch.y,) * len(starts))
            g, logits = self.attack_gradient(model, torch.cat(starts), y, batch.loss_scale)
            # The mean over all copies divides by N B; each copy's own loss is a mean over B.
            gradients = g.view(len(starts), *x.shape) * len(starts)
            logits = logits[: len(x)]
        else:
            pairs = [self.attack_gradient(model, start, batch.y, batch.loss_scale) for start in starts]
            gradients, logits = torch.stack([g for g, _ in pairs]), pairs[0][1]
        x_adv = threat.projected_step(x, 0.0, consensus(gradients, hyper.agree or len(starts)), length)
        return Crafted(x_adv, gradients.mean(0), logits=logits, step_size=length)


def consensus(gradients: Tensor, agree: int) -> Tensor:
    """Return the sign of `S = sum_k sign(g_k)` where `|S| >= 2 agree - N`, else 0; shape (N, ...) in.

    With `agree = N` all must have the same sign, and a zero is a disagreement.
    """
    votes = gradients.sign().sum(0)
    return torch.where(votes.abs() >= 2 * agree - len(gradients), votes.sign(), 0.0)
