"""FGSM: one step of size eps along the sign of the gradient. Cheap, and the classic victim of collapse."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from sora._passes import input_gradient
from sora._typed import option
from sora.methods import _base
from sora.methods._base import Crafted, Inputs, Method
from sora.methods._registry import register


@dataclass(frozen=True)
class Hyper(_base.Hyper):
    """FGSM's hyper-parameters."""

    alpha: float = option(1.0, "step size in multiples of eps", low=0)


@register(
    "fgsm",
    "one step of size eps from the clean input",
    paper="Goodfellow et al., Explaining and Harnessing Adversarial Examples",
    venue="ICLR 2015",
    forwards="2",
    backwards="1 in + 1",
    paper_cost="2 / 2",
    norms=("linf", "l2"),
)
class FGSM(Method):
    """`x_adv = box(x + eps sign(g))` with g the gradient at x."""

    hyper_class = Hyper
    hyper: Hyper

    def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
        """One ascent step from the clean input."""
        x, threat = batch.x, self.threat
        g, logits = input_gradient(model, x, batch.y, batch.loss_scale)
        x_adv = threat.clamp(x + self.hyper.alpha * threat.eps * threat.direction(g))
        return Crafted(x_adv, g, logits=logits, step_size=self.steps_of(self.hyper.alpha, x))
