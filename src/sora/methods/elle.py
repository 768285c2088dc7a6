"""ELLE: FGSM with a penalty on how far the loss is from linear between random points around x."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from sora._devices import summed
from sora.methods import Crafted, Hyper, Inputs, Learned, Method, option, register
from sora.threat import Threat

EARLIEST = 3  # earlier values of E that ELLE-A needs before it can detect a jump


@dataclass(frozen=True)
class ELLEHyper(Hyper):
    """ELLE's hyper-parameters."""

    alpha: float = option(1.0, "step size in multiples of eps", low=0)
    lam: float = option(1000.0, "weight of the penalty (lambda)", low=0)
    start: Literal["zero", "random"] = option("zero", "attack from the clean point (authors), or from noise")
    adaptive: bool = option(False, "ELLE-A: the weight is 0 until the penalty jumps, then lam_max, decaying")
    lam_max: float = option(4000.0, "ELLE-A: weight after a jump", low=0)
    decay: float = option(0.99, "ELLE-A: factor on the weight after a batch without a jump", low=0, high=1)
    deviations: float = option(2.0, "ELLE-A: standard deviations above the mean that count as a jump", low=0)


@register(
    "elle",
    "FGSM with a penalty on the curvature between random points around the image",
    group="one step, regularised",
    paper="Abad Rocamora et al., Efficient Local Linearity Regularization to Overcome Catastrophic"
    " Overfitting",
    venue="ICLR 2024",
    forwards="5",
    backwards="1 in + 1 over 4 batches",
    paper_cost="3 / 2",
    cost=5,
    memory="3 graphs",
    crafts_in_attack_mode=False,
)
class ELLE(Method):
    """`loss = L(x_adv) + lambda E`, `E = mean (l(xc) - (1-a) l(xa) - a l(xb))^2`, xc between xa and xb.

    Buffers, ELLE-A only: the weight `lam`, and count, mean and spread (`sqrt` of the summed squared
    deviations) of all earlier E, with the number that were not finite and left out.
    """

    hyper: ELLEHyper
    lam: Tensor
    count: Tensor
    mean: Tensor
    spread: Tensor
    skipped: Tensor

    def __init__(self, threat: Threat, hyper: ELLEHyper) -> None:
        super().__init__(threat, hyper)
        for name in ("lam", "count", "mean", "spread", "skipped") if hyper.adaptive else ():
            self.register_buffer(name, torch.zeros(()))

    def draw(self, x: Tensor) -> tuple[Tensor, ...]:
        """Draw two noises and a position between them for each example; a third noise for a random start."""
        ends = self.threat.random_start(x), self.threat.random_start(x)
        between = torch.rand(len(x), dtype=x.dtype, device=x.device)
        start = (self.threat.random_start(x),) if self.hyper.start == "random" else ()
        return (*ends, between, *start)

    def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
        """Take one step, and the penalty with its graph; neither the triplet nor a noisy start is clamped."""
        x, threat = batch.x, self.threat
        length = self.hyper.alpha * threat.eps
        start = x if self.hyper.start == "zero" else x + batch.noise[3]
        with self.attacking(model):
            g, logits = self.attack_gradient(model, start, batch.y, batch.loss_scale)
        with torch.enable_grad():
            xa, xb, a = x + batch.noise[0], x + batch.noise[1], batch.noise[2]
            xc = torch.lerp(xa, xb, a.view(-1, *[1] * (x.dim() - 1)))
            outputs = model(torch.cat((xa, xb, xc)))
            la, lb, lc = self.task.loss_of(outputs, torch.cat((batch.y,) * 3), "none").chunk(3)
            curvature = nonlinearity(la, lb, lc, a)
            penalty = (self.lam if self.hyper.adaptive else self.hyper.lam) * curvature
        x_adv, extras = threat.projected_step(x, start - x, g, length), {"elle": curvature.detach()}
        return Crafted(x_adv, g, logits=logits, penalty=penalty, step_size=length, extras=extras)

    def update_state(self, batch: Inputs, crafted: Crafted, learned: Learned) -> dict[str, Tensor]:
        """Set ELLE-A's weight of the next batch, then add this batch's E to the statistics (Welford)."""
        if not self.hyper.adaptive:
            return {}
        value = crafted.extras["elle"].to(self.mean.dtype)
        total, ranks = summed(torch.stack((value, torch.ones_like(value))))
        value = total / ranks  # one weight for all ranks
        usable = value.isfinite()
        deviation = self.spread / self.count.clamp(min=1).sqrt()
        jump = (self.count >= EARLIEST) & (value > self.mean + self.hyper.deviations * deviation)
        lam = torch.where(jump, self.hyper.lam_max, self.hyper.decay * self.lam)
        self.lam.copy_(torch.where(usable, lam, self.lam))
        count, difference = self.count + 1, torch.where(usable, value - self.mean, 0.0)
        # As a root, the sum of squares stays finite for an E of 1e20.
        grown = torch.hypot(self.spread, difference.abs() * (self.count / count).sqrt())
        self.spread.copy_(torch.where(usable, grown, self.spread))
        self.mean.add_(difference / count)
        self.count.add_(usable)
        self.skipped.add_(~usable)
        return {"lam": self.lam.clone(), "skipped": self.skipped.clone()}


def nonlinearity(la: Tensor, lb: Tensor, lc: Tensor, a: Tensor) -> Tensor:
    """Return E, the mean squared gap between the loss at `(1-a) xa + a xb` and the line through both ends."""
    return (lc - (1 - a) * la - a * lb).square().mean()
