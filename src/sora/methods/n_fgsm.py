"""N-FGSM: stronger noise around the clean input and no clipping afterwards."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from sora._passes import input_gradient
from sora._typed import option
from sora.methods import _base
from sora.methods._base import Crafted, Inputs, Method
from sora.methods._registry import register


@dataclass(frozen=True)
class Hyper(_base.Hyper):
    """N-FGSM's hyper-parameters."""

    k: float = option(2.0, "noise radius in multiples of eps", low=0)
    alpha: float = option(1.0, "step size in multiples of eps", low=0)


@register(
    "n-fgsm",
    "noise of 2 eps, one step of eps, not projected back",
    paper="de Jorge et al., Make Some Noise: Reliable and Efficient Single-Step Adversarial Training",
    venue="NeurIPS 2022",
    forwards="2",
    backwards="1 in + 1",
    paper_cost="2 / 2",
    norms=("linf", "l2"),
)
class NFGSM(Method):
    """`x_adv = box(s + alpha sign(g))` with g the gradient at `s = box(x + k eta)`; reaches (k + 1) eps."""

    hyper_class = Hyper
    hyper: Hyper
    compilable = True

    def draw(self, x: Tensor) -> tuple[Tensor, ...]:
        """Noise of k times the ball's radius."""
        return (self.threat.random_start(x).mul_(self.hyper.k),)

    def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
        """One ascent step from the boxed noisy input, kept where it lands."""
        threat = self.threat
        start = threat.clamp(batch.x + batch.noise[0])
        g, logits = input_gradient(model, start, batch.y, batch.loss_scale)
        x_adv = threat.clamp(start + self.hyper.alpha * threat.eps * threat.direction(g))
        return Crafted(x_adv, g, logits=logits, step_size=self.steps_of(self.hyper.alpha, batch.x))
