"""FGSM-RS: a random start inside the ball, one long step, then projection onto the ball."""

from dataclasses import dataclass

from torch import Tensor, nn

from sora.methods import Crafted, Hyper, Inputs, Method, option, register


@dataclass(frozen=True)
class FGSMRSHyper(Hyper):
    """FGSM-RS's hyper-parameters."""

    alpha: float = option(1.25, "step size in multiples of eps", low=0)


@register(
    "fgsm-rs",
    "random start in the ball, one step of 1.25 eps, projected back",
    group="one step",
    paper="Wong et al., Fast is better than free: Revisiting adversarial training",
    venue="ICLR 2020",
    forwards="2",
    backwards="1 in + 1",
    paper_cost="2 / 2",
    cost=2,
    norms=("linf", "l2"),
    compilable=True,
)
class FGSMRS(Method):
    """`x_adv = box(x + clip(s - x + alpha sign(g)))` with g the gradient at `s = box(x + eta)`."""

    hyper: FGSMRSHyper

    def draw(self, x: Tensor) -> tuple[Tensor, ...]:
        """Draw noise inside the ball."""
        return (self.threat.random_start(x),)

    def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
        """Take one ascent step from the clamped noisy input, projected onto the ball."""
        x, threat = batch.x, self.threat
        length = self.hyper.alpha * threat.eps
        start = threat.clamp(x + batch.noise[0])
        g, logits = self.attack_gradient(model, start, batch.y, batch.loss_scale)
        x_adv = threat.projected_step(x, start - x, g, length)
        return Crafted(x_adv, g, logits=logits, step_size=length)
