"""FGSM-CKPT: of several points on the way to the FGSM-RS example, train on the first that is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from sora._passes import input_gradient
from sora._typed import option
from sora.methods import _base
from sora.methods._base import Crafted, Inputs, Method
from sora.methods._registry import register


@dataclass(frozen=True)
class Hyper(_base.Hyper):
    """FGSM-CKPT's hyper-parameters."""

    checkpoints: int = option(3, "points on the way, the end included (c)", low=1)
    alpha: float = option(1.25, "step size in multiples of eps", low=0)
    attack_mode: Literal["train", "eval"] = option("eval", "mode of BatchNorm and Dropout while crafting")


@register(
    "fgsm-ckpt",
    "FGSM-RS cut short at the first of 3 points that is misclassified",
    paper="Kim et al., Understanding Catastrophic Overfitting in Single-step Adversarial Training",
    venue="AAAI 2021",
    forwards="4",
    backwards="1 in + 1",
    paper_cost="-",
    needs=("eval-mode craft",),
)
class FGSMCkpt(Method):
    """`x_adv = x + (j/c) d` with the smallest j that is misclassified, else `x + d`; d is FGSM-RS's."""

    hyper_class = Hyper
    hyper: Hyper

    def draw(self, x: Tensor) -> tuple[Tensor, ...]:
        """Noise inside the ball."""
        return (self.threat.random_start(x),)

    def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
        """The whole batch goes to every point: choosing who is left would make the host wait."""
        x, y, threat, count = batch.x, batch.y, self.threat, self.hyper.checkpoints
        start = threat.clamp(x + batch.noise[0])
        g, logits = input_gradient(model, start, y, batch.loss_scale)
        delta = threat.ascend(x, start, g, self.hyper.alpha * threat.eps) - x
        wrong = logits.argmax(1) != y  # at the start already: train on the clean input
        fraction = torch.where(wrong, 0.0, 1.0).to(x.dtype)
        for j in range(1, count):
            with torch.no_grad():
                fails = model(x + (j / count) * delta).argmax(1) != y
            fraction = torch.where(fails & ~wrong, j / count, fraction)
            wrong = wrong | fails
        chosen = fraction.view(-1, *[1] * (x.dim() - 1)) * delta
        step_size = self.steps_of(self.hyper.alpha, x)
        extras = {"fraction": fraction.mean()}
        return Crafted(threat.clamp(x + chosen), g, logits=logits, step_size=step_size, extras=extras)
