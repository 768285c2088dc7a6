"""FGSM: one step of size eps along the sign of the gradient. Cheap, and prone to catastrophic overfitting."""

from dataclasses import dataclass

from torch import nn

from sora.methods import Crafted, Hyper, Inputs, Method, option, register


@dataclass(frozen=True)
class FGSMHyper(Hyper):
    """FGSM's hyper-parameters."""

    alpha: float = option(1.0, "step size in multiples of eps; above 1 the result is projected", low=0)


@register(
    "fgsm",
    "one step of size eps from the clean input",
    group="one step",
    paper="Goodfellow et al., Explaining and Harnessing Adversarial Examples",
    venue="ICLR 2015",
    forwards="2",
    backwards="1 in + 1",
    paper_cost="2 / 2",
    cost=2,
    norms=("linf", "l2"),
)
class FGSM(Method):
    """`x_adv = box(x + clip(alpha sign(g)))` with g the gradient at x."""

    hyper: FGSMHyper

    def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
        """Take one ascent step from the clean input."""
        x, threat = batch.x, self.threat
        length = self.hyper.alpha * threat.eps
        g, logits = self.attack_gradient(model, x, batch.y, batch.loss_scale)
        # A step of at most eps is inside the ball; projecting it would only add rounding.
        long = self.hyper.alpha > 1
        x_adv = threat.projected_step(x, 0.0, g, length) if long else threat.step(x, g, length)
        return Crafted(x_adv, g, logits=logits, step_size=length)
