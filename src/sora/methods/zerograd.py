"""ZeroGrad: FGSM-RS that does not step where the gradient is smallest."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sora.methods import Crafted, Hyper, Inputs, option, register
from sora.methods._base import RandomStart


@dataclass(frozen=True)
class ZeroGradHyper(Hyper):
    """ZeroGrad's hyper-parameters."""

    alpha: float = option(2.0, "step size in multiples of eps", low=0)
    q: float = option(0.45, "share of each example's smallest gradient entries that is zeroed", low=0, high=1)


@register(
    "zerograd",
    "FGSM-RS with the smallest gradient entries of each image set to zero",
    group="one step",
    paper="Golgooni et al., ZeroGrad: Costless Conscious Remedies for Catastrophic Overfitting in the FGSM"
    " Adversarial Training",
    venue="Intelligent Systems with Applications 2023",
    forwards="2",
    backwards="1 in + 1",
    paper_cost="2 / 2",
    cost=2,
)
class ZeroGrad(RandomStart):
    """FGSM-RS with `sign(g)` only where `|g|` reaches the q-quantile of its example."""

    hyper: ZeroGradHyper

    def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
        """Take one long step where the gradient is large; the other pixels keep their noise."""
        x, threat = batch.x, self.threat
        length = self.hyper.alpha * threat.eps
        start = threat.clamp(x + batch.noise[0])
        g, logits = self.attack_gradient(model, start, batch.y, batch.loss_scale)
        x_adv = threat.projected_step(x, start - x, without_smallest(g, self.hyper.q), length)
        return Crafted(x_adv, g, logits=logits, step_size=length)


def without_smallest(g: Tensor, q: float) -> Tensor:
    """Set each example to 0 where `|g|` is strictly below its q-quantile, linearly interpolated."""
    size = g.flatten(1).abs()
    position = q * (size.shape[1] - 1)
    above = size.shape[1] - int(position)
    # A selection instead of torch.quantile, which sorts (several times slower) and refuses large inputs.
    largest = size.topk(above, dim=1, sorted=False).values
    around = largest.topk(min(2, above), dim=1, largest=False).values
    threshold = torch.lerp(around[:, :1], around[:, -1:], position - int(position))
    return torch.where(size < threshold, 0.0, g.flatten(1)).view_as(g)
