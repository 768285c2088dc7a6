"""TDAT: labels relaxed over the epochs, a start from the last batch, a penalty weighted by confidence."""

import math
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from sora._passes import precise
from sora.methods import Crafted, Inputs, Learned, Method, PenaltyHyper, option, register, soft_targets
from sora.methods._state import Memory, StorageHyper
from sora.threat import Threat

ABOVE_ONE = 1.0000001  # the authors' constant, so that the weight of a certain prediction is not 0


@dataclass(frozen=True)
class TDATHyper(PenaltyHyper):
    """TDAT's hyper-parameters."""

    beta: float = option(0.6, "scale of the target of the true class, which falls over the epochs", low=0)
    gam_min: float = option(0.15, "lowest target of the true class: 0.05 for 100 classes", low=0, high=1)
    relax: Literal["tan", "tanh"] = option("tan", "how the target falls: as in the code or in the paper")
    lam: float = option(0.6, "weight of the distance of the logits (lambda): 0.05 for 100 classes", low=0)
    mo: float = option(0.0, "weight of the old start in the next one (paper: 0.75)", low=0, high=1)
    reference: Literal["start", "clean"] = option(
        "start", "logits to stay close to: the attack's start (code) or the image (paper, one more pass)"
    )
    norm: Literal["squared", "l2"] = option("squared", "distance: squared l2 (code) or l2 (paper)")
    detach_p: bool = option(False, "no gradient through the confidence that weights the distance")


@register(
    "tdat",
    "one step from the last batch's perturbation, with labels relaxed over the epochs",
    group="one step, with a memory",
    paper="Tong et al., Taxonomy Driven Fast Adversarial Training",
    venue="AAAI 2024",
    forwards="2",
    backwards="1 in + 1 (two graphs)",
    pass_options=("reference", "strict"),
    cost=2.5,
    memory="1 graph, 1 per row",
    needs=("setup",),
    uses_epochs=("beta",),
    single_process=True,
    own_targets="gam_min",
)
class TDAT(Method):
    """`loss = CE(z1, S_u(1 - gam)) + lambda mean ||z0 - z1||^2 tanh(1 - p)`, z0 and p at the start.

    p is the probability of the true class; `gam = max(gam_min, beta tan(1 - (e - 1) / T))` in epoch e of T.
    The attack takes one step of eps on `CE(f(x + delta), S_o(gam))` from the last batch's perturbation delta.

    Stored: `delta` by row of the batch, the current `gam`.
    """

    hyper: TDATHyper
    gam: Tensor

    def __init__(self, threat: Threat, hyper: TDATHyper) -> None:
        super().__init__(threat, hyper)
        self.epochs = 1
        self.delta = Memory(StorageHyper(), "row")
        self.register_buffer("gam", torch.tensor(self._target(1)))

    def setup(self, *, epochs: int, **known: Any) -> None:
        """Allocate a perturbation for every row of a batch."""
        self.epochs = epochs
        self.delta.allocate(self.gam.device, **known)
        self.delta.fill_signs(self.threat.eps)

    def begin_epoch(self, epoch: int) -> None:
        """Relax the labels of this epoch."""
        self.gam.fill_(self._target(epoch))

    def _target(self, epoch: int) -> float:
        """Return `max(gam_min, beta tan(1 - (e - 1)/T))`, at most 1."""
        curve = math.tan if self.hyper.relax == "tan" else math.tanh
        left = max(1 - (epoch - 1) / self.epochs, 0.0)
        return min(max(self.hyper.gam_min, self.hyper.beta * curve(left)), 1.0)

    def attack_loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return cross-entropy with target gam for the true class, the rest shared by the others."""
        return self.task.loss_of(logits, soft_targets(logits, y, 1 - self.gam, "others"))

    def train_loss(self, logits: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
        """Return cross-entropy with labels smoothed by 1 - gam over all classes."""
        return self.task.loss_of(logits, soft_targets(logits, y, 1 - self.gam, "uniform"), reduction)

    def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
        """Take one step from the stored perturbation. The start is not clamped; its pass keeps its graph."""
        x, threat = batch.x, self.threat
        delta = threat.project(self.delta.read(batch))  # eps may have changed
        keep = self.hyper.reference == "start"
        g, z0 = self.attack_gradient(model, x + delta, batch.y, batch.loss_scale, keep_graph=keep)
        x_adv = threat.projected_step(x, delta, g, threat.eps)
        return Crafted(x_adv, g, logits=z0.detach(), step_size=threat.eps, kept=(z0, delta))

    def objective(self, model: nn.Module, logits: Tensor, batch: Inputs, crafted: Crafted) -> Tensor:
        """Return smoothed cross-entropy plus the weighted distance, with gradients through both passes."""
        z0 = crafted.kept[0] if self.hyper.reference == "start" else model(batch.x)
        p = precise(z0).softmax(1).gather(1, batch.y.unsqueeze(1)).squeeze(1)
        p = p.detach() if self.hyper.detach_p else p
        penalty = weighted_distance(z0, logits, p, squared=self.hyper.norm == "squared")
        return self.train_loss(logits, batch.y) + self.hyper.lam * penalty

    def update_state(self, batch: Inputs, crafted: Crafted, learned: Learned) -> dict[str, Tensor]:
        """Store the start of the next batch, unless the gradient is not finite."""
        old, new, mo = crafted.kept[1], crafted.x_adv - batch.x, self.hyper.mo
        start = self.threat.inside(batch.x, mo * old + (1 - mo) * new) - batch.x
        self.delta.write(batch, start, cast(Tensor, crafted.gradient).isfinite().all())
        return {"gam": self.gam.clone()}


def weighted_distance(z0: Tensor, z1: Tensor, p: Tensor, *, squared: bool) -> Tensor:
    """Return the mean distance of the logits, each example's weighted by `tanh(1.0000001 - p)`."""
    apart = precise(z0) - precise(z1)
    distance = apart.square().sum(1) if squared else torch.linalg.vector_norm(apart, dim=1)
    return (distance * torch.tanh(ABOVE_ONE - p)).mean()
