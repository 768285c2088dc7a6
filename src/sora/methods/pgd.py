"""PGD adversarial training: several small projected steps, strong and expensive."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from sora.methods import Crafted, Hyper, Inputs, ascend, option, preset, register
from sora.methods._base import RandomStart


@dataclass(frozen=True)
class PGDHyper(Hyper):
    """PGD's hyper-parameters."""

    steps: int = option(10, "attack steps", low=1)
    alpha: float = option(0.25, "step size in multiples of eps", low=0)
    align: Literal["second", "final"] = option(
        "second",
        "PertAlign compares the first attack gradient with the second, or with that at the final point",
    )


@register(
    "pgd",
    "random start, several projected steps",
    group="several steps",
    paper="Madry et al., Towards Deep Learning Models Resistant to Adversarial Attacks",
    venue="ICLR 2018",
    forwards="steps + 1",
    backwards="steps in + 1",
    pass_options=("steps",),
    paper_cost="K+1 / K+1",
    cost=11,
    norms=("linf", "l2"),
    in_all=False,
)
class PGD(RandomStart):
    """K times `s = box(x + clip(s - x + alpha sign(g)))` from a random start in the ball."""

    hyper: PGDHyper

    def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
        """Run projected gradient ascent; PertAlign compares its first two gradients (appendix C.4)."""
        x, threat = batch.x, self.threat
        length = self.hyper.alpha * threat.eps
        start, scale = threat.clamp(x + batch.noise[0]), batch.loss_scale

        def loss(logits: Tensor) -> Tensor:
            return self.attack_loss(logits, batch.y)

        found = ascend(loss, model, x, start, threat, self.hyper.steps, length, loss_scale=scale, keep=2)
        x_adv, gradients, logits = found
        second = gradients[1] if len(gradients) == 2 and self.hyper.align == "second" else None
        return Crafted(x_adv, gradients[0], second, logits, step_size=length)


_two = {"forwards": "3", "backwards": "2 in + 1", "paper_cost": "3 / 3", "cost": 3}
_ten = {"forwards": "11", "backwards": "10 in + 1", "paper_cost": "11 / 11"}
preset("pgd-2", "pgd", "PGD with 2 steps of eps/2", _two, steps=2, alpha=0.5)
preset("pgd-10", "pgd", "PGD with 10 steps of eps/4", _ten, steps=10, alpha=0.25)
