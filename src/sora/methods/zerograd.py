"""ZeroGrad: FGSM-RS that does not step where the gradient is smallest."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sora._passes import input_gradient
from sora._typed import option
from sora.methods import _base
from sora.methods._base import Crafted, Inputs, Method
from sora.methods._registry import register


@dataclass(frozen=True)
class Hyper(_base.Hyper):
    """ZeroGrad's hyper-parameters."""

    alpha: float = option(2.0, "step size in multiples of eps", low=0)
    q: float = option(0.45, "share of each example's smallest gradient entries that is zeroed", low=0, high=1)


@register(
    "zerograd",
    "FGSM-RS with the smallest gradient entries of each image set to zero",
    paper="Golgooni et al., ZeroGrad: Costless Conscious Remedies for Catastrophic Overfitting in the FGSM"
    " Adversarial Training",
    venue="Intelligent Systems with Applications 2023",
    forwards="2",
    backwards="1 in + 1",
    paper_cost="2 / 2",
)
class ZeroGrad(Method):
    """FGSM-RS with `sign(g)` only where `|g|` reaches the q-quantile of its example."""

    hyper_class = Hyper
    hyper: Hyper

    def draw(self, x: Tensor) -> tuple[Tensor, ...]:
        """Noise inside the ball."""
        return (self.threat.random_start(x),)

    def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
        """One long step of the larger entries; the others keep their noise."""
        x, threat = batch.x, self.threat
        start = threat.clamp(x + batch.noise[0])
        g, logits = input_gradient(model, start, batch.y, batch.loss_scale)
        x_adv = threat.ascend(x, start, without_smallest(g, self.hyper.q), self.hyper.alpha * threat.eps)
        return Crafted(x_adv, g, logits=logits, step_size=self.steps_of(self.hyper.alpha, x))


def without_smallest(g: Tensor, q: float) -> Tensor:
    """Each example with 0 where `|g|` is strictly under its q-quantile, linearly interpolated."""
    size = g.flatten(1).abs()
    place = q * (size.shape[1] - 1)
    above = size.shape[1] - int(place)
    # A selection, not torch.quantile: that sorts, several times slower, and refuses large inputs.
    largest = size.topk(above, dim=1, sorted=False).values
    around = largest.topk(min(2, above), dim=1, largest=False).values
    threshold = torch.lerp(around[:, :1], around[:, -1:], place - int(place))
    return torch.where(size < threshold, 0.0, g.flatten(1)).view_as(g)
