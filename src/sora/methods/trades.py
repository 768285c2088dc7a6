"""TRADES: clean cross-entropy plus the divergence under a ten-step attack."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sora._passes import Loss, Scale, bare, precise
from sora.methods import Crafted, Hyper, Inputs, Learned, Method, ascend, gradient_of, option, register
from sora.methods._base import Differentiate, backward

START = 0.001  # standard deviation of the start's noise, in input units


@dataclass(frozen=True)
class TRADESHyper(Hyper):
    """TRADES's hyper-parameters."""

    steps: int = option(10, "attack steps", low=1)
    alpha: float | None = option(
        None, "step size in multiples of eps; by default 0.25 (linf), 2 / steps (l2)", low=0
    )
    beta: float = option(6.0, "weight of the divergence", low=0)
    attack_mode: Literal["train", "eval"] = option("eval", "mode of BatchNorm and Dropout during the attack")


@register(
    "trades",
    "clean cross-entropy plus the divergence under a 10-step attack",
    group="several steps",
    paper="Zhang et al., Theoretically Principled Trade-off between Robustness and Accuracy",
    venue="ICML 2019",
    forwards="14",
    backwards="steps in + 1 (two graphs)",
    pass_options=("steps",),
    paper_cost="12 / 11",
    cost=13,
    memory="1 graph",
    norms=("linf", "l2"),
    needs=("eval-mode attack",),
    has_pert_align=False,
    needs_classes=True,
)
class TRADES(Method):
    """`loss = CE(f(x), y) + beta mean KL(softmax f(x) || softmax f(x_adv))`; the attack ascends the KL."""

    hyper: TRADESHyper

    def draw(self, x: Tensor) -> tuple[Tensor, ...]:
        """Draw a little Gaussian noise: at x itself the divergence has no gradient."""
        return (torch.randn_like(x).mul_(START),)

    def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
        """Ascend the divergence from the clean prediction."""
        x, start = batch.x, batch.x + batch.noise[0]
        with torch.no_grad():
            clean = model(x)
        usual = 0.25 if self.threat.norm == "linf" else 2 / self.hyper.steps
        length = (usual if self.hyper.alpha is None else self.hyper.alpha) * self.threat.eps

        def loss(logits: Tensor) -> Tensor:
            return divergence(clean, logits).sum()

        if self.threat.norm == "l2":
            x_adv = self._ascend_l2(loss, model, x, start, length, batch.loss_scale)
        else:
            steps, scale = self.hyper.steps, batch.loss_scale
            x_adv = ascend(loss, model, x, start, self.threat, steps, length, loss_scale=scale).x_adv
        # Without `gradient`: the weights are not updated on x_adv alone, so PertAlign has no meaning.
        return Crafted(x_adv, step_size=length)

    def _ascend_l2(
        self, loss: Loss, model: nn.Module, x: Tensor, at: Tensor, length: float, scale: Scale
    ) -> Tensor:
        """Attack as the authors do in l2: clamp each step to the box, then shorten it to the ball."""
        for _ in range(self.hyper.steps):
            gradient, _ = gradient_of(loss, model, at, scale)
            moved = self.threat.step(at, gradient, length)
            at = x + self.threat.project(moved - x)
        return self.threat.clamp(at)  # inside already, except for rounding

    def learn(
        self, model: nn.Module, batch: Inputs, crafted: Crafted, differentiate: Differentiate = backward
    ) -> Learned:
        """Update the weights after a clean pass that only moves BatchNorm's running statistics.

        The authors' three passes (clean, adversarial, clean) decide the statistics that the next attack uses.
        Their two clean passes have the same logits, so the first one needs no graph here.
        """
        with torch.no_grad():
            bare(model)(batch.x)
        return super().learn(model, batch, crafted, differentiate)

    def objective(self, model: nn.Module, logits: Tensor, batch: Inputs, crafted: Crafted) -> Tensor:
        """Return clean cross-entropy plus the divergence, with gradients through both of its sides."""
        clean = model(batch.x)
        return self.train_loss(clean, batch.y) + self.hyper.beta * divergence(clean, logits).mean()


def divergence(clean: Tensor, other: Tensor) -> Tensor:
    """Return `KL(softmax(clean) || softmax(other))` of each example."""
    # Both sides as logarithms: the gradient through a probability that underflowed stays finite.
    p, q = precise(clean).log_softmax(1), precise(other).log_softmax(1)
    return F.kl_div(q, p, reduction="none", log_target=True).sum(1)
