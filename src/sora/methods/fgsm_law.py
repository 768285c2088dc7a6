"""FGSM-LAW: a penalty on the change of predictions and features, and a gated average of the weights."""

import copy
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sora._passes import bare, mse, precise
from sora.errors import UserError
from sora.methods import Crafted, Inputs, Learned, PenaltyHyper, Smoothing, option, register
from sora.methods._base import Differentiate, RandomStart, backward
from sora.methods._features import Features
from sora.threat import Threat

OFFSET = 0.125  # added to the squared distance of the inputs, far above it


@dataclass(frozen=True)
class FGSMLAWHyper(PenaltyHyper):
    """The hyper-parameters of FGSM-LAW; the defaults are the authors' for CIFAR-10."""

    lam: float = option(12.0, "weight of the Lipschitz penalty (lambda)", low=0)
    phi: float = option(0.7, "target of the true class; the others share the rest equally", low=0, high=1)
    theta: float = option(
        0.82, "average after batches with adversarial / reference accuracy below this", low=0
    )
    gate_add: int = option(0, "constant added to the denominator of that ratio", low=0)
    c_max: float = option(0.999, "largest weight of the old average", low=0, high=1)
    reference: Literal["clean", "start"] = option(
        "clean", "what the penalty compares with: the image (one more pass) or the attack's start"
    )
    attack_logits: bool = option(
        False, "attack the ordinary cross-entropy, not that of probabilities taken for logits"
    )


@register(
    "fgsm-law",
    "one step from random signs, a Lipschitz penalty, and weights averaged when the attack succeeds",
    group="one step, regularised",
    paper="Jia et al., Revisiting and Exploring Efficient Fast Adversarial Training via LAW:"
    " Lipschitz Regularization and Auto Weight Averaging",
    venue="arXiv 2308.11443, 2023",
    forwards="3",
    backwards="1 in + 1 (two graphs)",
    pass_options=("reference", "strict"),
    cost=3,
    memory="1 graph, 1 model",
    needs=("setup", "after_update"),
    single_process=True,
    own_targets="phi",
)
class FGSMLAW(RandomStart):
    """`loss = CE(z1, S_o(phi)) + lambda D / (MSE(x_adv, x0) + 0.125)` with weights averaged behind a gate.

    `D = MSE(softmax z1, softmax z0) + MSE(softmax h1, softmax h0)`, z the logits and h the features at the
    reference x0 and at x_adv. After a batch in which the attack leaves less than the share theta of the
    correct predictions: `w_avg = c w_avg + (1 - c) w` with `c = min(c_max, (n + 1) / (n + 10))`.

    Stored: the averaged model, how often it was updated (`n`), and whether the current batch updates it.
    """

    hyper: FGSMLAWHyper
    n: Tensor
    gate: Tensor
    correct: Tensor

    def __init__(self, threat: Threat, hyper: FGSMLAWHyper) -> None:
        super().__init__(threat, hyper)
        self.smoothing = Smoothing(1 - hyper.phi, "others", smooth_attack=False)
        self.features = Features()
        self.average: nn.Module | None = None
        self.register_buffer("n", torch.zeros((), dtype=torch.int64))
        self.register_buffer("gate", torch.zeros((), dtype=torch.bool))
        self.register_buffer("correct", torch.zeros(2, dtype=torch.int64), persistent=False)

    @property
    def averaged(self) -> nn.Module | None:
        """The model with averaged weights, which is evaluated and stored."""
        return self.average

    def setup(self, *, model: nn.Module | None = None, **_: Any) -> None:
        """Copy the initial weights, where the average starts."""
        if model is None:
            raise UserError("fgsm-law averages weights; call setup(model=)")
        self.average = copy.deepcopy(model).requires_grad_(False)

    def attack_loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return cross-entropy with hard labels, of probabilities instead of logits (authors' code)."""
        if not self.hyper.attack_logits:
            logits = precise(logits).softmax(1)
        return self.task.loss_of(logits, y)

    def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
        """Take one step of size eps from signs of eps/2, projected onto the ball."""
        x, threat = batch.x, self.threat
        noise = threat.clamp(x + batch.noise[0]) - x
        start = threat.clamp(x + threat.eps / 2 * noise.sign())
        keep = self.hyper.reference == "start"
        with self.features.recording(model):
            g, z0 = self.attack_gradient(model, start, batch.y, batch.loss_scale, keep_graph=keep)
            kept = (start, z0, self.features.last) if keep else ()
        x_adv = threat.projected_step(x, start - x, g, threat.eps)
        return Crafted(x_adv, g, logits=z0.detach(), step_size=threat.eps, kept=kept)

    def learn(
        self, model: nn.Module, batch: Inputs, crafted: Crafted, differentiate: Differentiate = backward
    ) -> Learned:
        """Pass the reference first, as the authors do: BatchNorm's statistics depend on the order."""
        with self.features.recording(bare(model)):
            if self.hyper.reference == "clean":
                with torch.enable_grad():
                    z0 = model(batch.x)
                crafted = crafted._replace(kept=(batch.x, z0, self.features.last))
            return super().learn(model, batch, crafted, differentiate)

    def objective(self, model: nn.Module, logits: Tensor, batch: Inputs, crafted: Crafted) -> Tensor:
        """Return smoothed cross-entropy plus the penalty, with gradients through both passes."""
        (x0, z0, h0), h1 = crafted.kept, self.features.last
        self.judge(logits.detach(), z0.detach(), batch.y)
        change = mse(softmax(logits), softmax(z0)) + mse(softmax(h1), softmax(h0))
        return self.train_loss(logits, batch.y) + self.hyper.lam * change / (mse(crafted.x_adv, x0) + OFFSET)

    def judge(self, adversarial: Tensor, reference: Tensor, y: Tensor) -> None:
        """Decide from both logits whether the batch's update is averaged: where accuracy falls much.

        A batch that comes in parts is judged with its last part.
        """
        self.correct += torch.stack([(logits.argmax(1) == y).sum() for logits in (adversarial, reference)])
        if not self.ends_batch:
            return
        correct, among = self.correct[0], self.correct[1] + self.hyper.gate_add
        # Without a correct prediction there is no ratio.
        self.gate.copy_((correct / among.clamp(min=1) < self.hyper.theta) & (among > 0))
        self.correct.zero_()

    def update_state(self, batch: Inputs, crafted: Crafted, learned: Learned) -> dict[str, Tensor]:
        """Log how many updates the average has."""
        return {"averaged_updates": self.n.clone()}

    @torch.no_grad()
    def after_update(self, model: nn.Module) -> None:
        """Average the new weights and buffers, if the batch was one of those that count."""
        if self.average is None:
            return
        c = ((self.n + 1) / (self.n + 10)).clamp(max=self.hyper.c_max)
        # A tensor that several layers share comes once, and so is averaged once.
        mine, theirs = (chain(each.parameters(), each.buffers()) for each in (self.average, model))
        for average, current in zip(mine, theirs, strict=True):
            new = c * average + (1 - c) * current if average.is_floating_point() else current
            average.copy_(torch.where(self.gate, new, average))
        self.n.add_(self.gate)


def softmax(z: Tensor) -> Tensor:
    """Return the probabilities in at least float32."""
    return precise(z).softmax(1)
