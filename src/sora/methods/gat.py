"""GAT: clean cross-entropy plus the distance of the probabilities under a one-step attack guided by it."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sora._passes import precise
from sora.methods import Crafted, Hyper, Inputs, Method, gradient_of, option, register
from sora.threat import Threat


@dataclass(frozen=True)
class GATHyper(Hyper):
    """GAT's hyper-parameters."""

    lam: float = option(10.0, "weight of the distance (lambda)", low=0)
    boost: float = option(4.0, "factor on lambda towards the end of training", low=0)
    boost_from: float = option(0.86, "share of the epochs before the boost", low=0, high=1)
    noise: float = option(0.5, "size of the random signs at the start, in multiples of eps", low=0)
    alternate: bool = option(
        True, "leave the distance out of the attack on the 1st, 3rd, ... batch of an epoch"
    )
    attack_mode: Literal["train", "eval"] = option("eval", "mode of BatchNorm and Dropout during the attack")


@register(
    "gat",
    "clean cross-entropy plus the squared distance of the probabilities, which also guides the attack",
    group="one step, regularised",
    paper="Sriramanan et al., Guided Adversarial Attack for Evaluating and Enhancing Adversarial Defenses",
    venue="NeurIPS 2020",
    forwards="4",
    backwards="1 in + 1 (two graphs)",
    pass_options=("alternate",),
    cost=3.5,
    memory="1 graph",
    needs=("setup", "eval-mode attack"),
    uses_epochs=("boost_from",),
    has_pert_align=False,
    needs_classes=True,
    crafts_in_attack_mode=False,
)
class GAT(Method):
    """`loss = CE(f(x), y) + lambda mean ||softmax f(x) - softmax f(x_adv)||^2`.

    The attack takes one step of eps on the same sum (on every other batch without the distance) from random
    signs of eps/2.

    Buffers: the current `lam`, and the batches seen in this epoch.
    """

    hyper: GATHyper
    lam: Tensor
    batches: Tensor

    def __init__(self, threat: Threat, hyper: GATHyper) -> None:
        super().__init__(threat, hyper)
        self.last_plain_epoch: float | None = None
        self.register_buffer("lam", torch.tensor(hyper.lam))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def setup(self, *, epochs: int, **_: Any) -> None:
        """Note after which epoch lambda is boosted."""
        self.last_plain_epoch = round(self.hyper.boost_from * epochs, 6)

    def begin_epoch(self, epoch: int) -> None:
        """Set lambda; the first batch of an epoch is one whose attack leaves the distance out."""
        boosted = self.last_plain_epoch is not None and epoch > self.last_plain_epoch
        self.lam.fill_(self.hyper.lam * (self.hyper.boost if boosted else 1.0))
        self.batches.zero_()

    def draw(self, x: Tensor) -> tuple[Tensor, ...]:
        """Draw independent random signs."""
        return (self.threat.random_start(x).sign_().mul_(self.hyper.noise * self.threat.eps),)

    def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
        """Take one step of eps on cross-entropy plus distance from the clean prediction."""
        x, threat = batch.x, self.threat
        with torch.no_grad():
            reference = precise(model(x)).softmax(1)
        weight = self.lam * (self.batches % 2) if self.hyper.alternate else self.lam
        self.batches.add_(self.ends_batch)
        start = threat.clamp(x + batch.noise[0])

        def guided(z: Tensor) -> Tensor:
            return self.attack_loss(z, batch.y) + weight * distance(reference, precise(z).softmax(1))

        with self.attacking(model):
            g, logits = gradient_of(guided, model, start, batch.loss_scale)
        x_adv = threat.projected_step(x, start - x, g, threat.eps)
        # Without `gradient`: the weights are not updated on x_adv alone, so PertAlign has no meaning.
        return Crafted(x_adv, logits=logits, step_size=threat.eps)

    def objective(self, model: nn.Module, logits: Tensor, batch: Inputs, crafted: Crafted) -> Tensor:
        """Return clean cross-entropy plus the distance, with gradients through both of its sides."""
        clean = model(batch.x)
        change = distance(precise(clean).softmax(1), precise(logits).softmax(1))
        return self.train_loss(clean, batch.y) + self.lam * change


def distance(p: Tensor, q: Tensor) -> Tensor:
    """Return the mean over the batch of the squared l2 distance of two rows of probabilities."""
    return (p - q).square().sum(1).mean()
