"""N-FGSM: stronger noise around the clean input and no projection afterwards."""

from dataclasses import dataclass

from torch import Tensor, nn

from sora.methods import Crafted, Hyper, Inputs, Method, option, register


@dataclass(frozen=True)
class NFGSMHyper(Hyper):
    """N-FGSM's hyper-parameters."""

    k: float = option(2.0, "noise radius in multiples of eps", low=0)
    alpha: float = option(1.0, "step size in multiples of eps", low=0)


@register(
    "n-fgsm",
    "noise of 2 eps, one step of eps, not projected back",
    group="one step",
    paper="de Jorge et al., Make Some Noise: Reliable and Efficient Single-Step Adversarial Training",
    venue="NeurIPS 2022",
    forwards="2",
    backwards="1 in + 1",
    paper_cost="2 / 2",
    cost=2,
    norms=("linf", "l2"),
    compilable=True,
)
class NFGSM(Method):
    """`x_adv = box(s + alpha sign(g))` with g the gradient at `s = box(x + k eta)`; reaches (k + 1) eps."""

    hyper: NFGSMHyper

    def draw(self, x: Tensor) -> tuple[Tensor, ...]:
        """Draw noise of k times the ball's radius."""
        return (self.threat.random_start(x).mul_(self.hyper.k),)

    def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
        """Take one ascent step from the clamped noisy input, not projected."""
        threat = self.threat
        length = self.hyper.alpha * threat.eps
        start = threat.clamp(batch.x + batch.noise[0])
        g, logits = self.attack_gradient(model, start, batch.y, batch.loss_scale)
        return Crafted(threat.step(start, g, length), g, logits=logits, step_size=length)
