"""FGSM-CKPT: train on the first misclassified of several points on the way to the FGSM-RS example."""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from sora._passes import evaluating
from sora.errors import UserError
from sora.methods import Crafted, Hyper, Inputs, option, preset, register
from sora.methods._base import RandomStart


@dataclass(frozen=True)
class FGSMCkptHyper(Hyper):
    """FGSM-CKPT's hyper-parameters."""

    checkpoints: int = option(3, "points on the way, including the end (c)", low=1)
    alpha: float = option(1.25, "step size in multiples of eps", low=0)
    checkpoint_mode: Literal["train", "eval"] | None = option(
        None, "mode of BatchNorm and Dropout at the points before the end; none: the attack's"
    )
    attack_mode: Literal["train", "eval"] = option("eval", "mode of BatchNorm and Dropout during the attack")


@register(
    "fgsm-ckpt",
    "FGSM-RS cut short at the first of 3 points that is misclassified",
    group="one step",
    paper="Kim et al., Understanding Catastrophic Overfitting in Single-step Adversarial Training",
    venue="AAAI 2021",
    forwards="4",
    backwards="1 in + 1",
    pass_options=("checkpoints",),
    cost=3,
    needs=("eval-mode attack",),
    crafts_in_attack_mode=False,
)
class FGSMCkpt(RandomStart):
    """`x_adv = x + (j/c) d` with the smallest misclassified j, otherwise `x + d`; d is FGSM-RS's."""

    hyper: FGSMCkptHyper

    def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
        """Evaluate the whole batch at every point: selecting examples would make the host wait."""
        x, y, threat, count = batch.x, batch.y, self.threat, self.hyper.checkpoints
        start = threat.clamp(x + batch.noise[0])
        length = self.hyper.alpha * threat.eps
        with self.attacking(model):
            g, logits = self.attack_gradient(model, start, y, batch.loss_scale)
        delta = threat.projected_step(x, start - x, g, length) - x
        wrong = self._wrong(logits, y)  # already at the start: train on the clean input
        fraction = torch.where(wrong, 0.0, 1.0).to(x.dtype)
        mode = self.hyper.checkpoint_mode or self.hyper.attack_mode
        for j in range(1, count):
            with torch.no_grad(), evaluating(model) if mode == "eval" else nullcontext():
                fails = self._wrong(model(x + (j / count) * delta), y)
            fraction = torch.where(fails & ~wrong, j / count, fraction)
            wrong = wrong | fails
        chosen = fraction.view(-1, *[1] * (x.dim() - 1)) * delta
        extras = {"fraction": fraction.mean()}
        return Crafted(threat.clamp(x + chosen), g, logits=logits, step_size=length, extras=extras)

    def _wrong(self, output: Tensor, y: Tensor) -> Tensor:
        right = self.task.right(output, y)
        if right is None:
            raise UserError("fgsm-ckpt looks for wrong answers: pass correct=fn(output, target) -> (B,) bool")
        return ~right


# The public benchmark's name for the same method.
preset("ssat", "fgsm-ckpt", "another name of fgsm-ckpt", {"in_all": False})
