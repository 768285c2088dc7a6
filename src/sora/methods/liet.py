"""LIET: the attack starts from its perturbation of a grey image of the class, partly replaced by noise."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sora._passes import evaluating, precise
from sora.errors import UserError
from sora.methods import Crafted, Inputs, Method, PenaltyHyper, Smoothing, option, register
from sora.methods._state import BatchCounter
from sora.threat import Threat


@dataclass(frozen=True)
class LIETHyper(PenaltyHyper):
    """LIET's hyper-parameters."""

    lam: float = option(100.0, "weight of the divergence of the predictions (lambda)", low=0)
    ramp: bool = option(True, "lambda grows linearly and reaches lam in the last epoch (code)")
    nu: float = option(0.6, "label smoothing, spread over the other classes at random", low=0, high=1)
    lo: float = option(0.1, "smallest share of entries that noise replaces", low=0, high=1)
    hi: float = option(0.5, "largest share of entries that noise replaces", low=0, high=1)
    k: float = option(1.0, "size of that noise in multiples of eps", low=0)
    every: int = option(20, "batches between two updates of the label information (q)", low=1)
    clip_ball: bool = option(True, "project onto the ball after the step")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lo > self.hi:
            raise UserError(f"{self.prefix}lo is {self.lo:g}; allowed: up to {self.prefix}hi, {self.hi:g}")


@register(
    "liet",
    "one step from a perturbation computed for the class on a grey image, partly replaced by noise",
    group="one step, with a memory",
    paper="Pan, Tang, Li, Yao, Mitigating Catastrophic Overfitting in Fast Adversarial Training via Label"
    " Information Elimination",
    venue="ICCV 2025",
    forwards="2 + K/(qB)",
    backwards="1 + K/(qB) in + 1 (two graphs)",
    pass_options=("strict",),
    cost=2.5,
    memory="1 graph, 1 per class",
    needs=("setup",),
    uses_epochs=("ramp",),
    single_process=True,
    own_targets="nu",
)
class LIET(Method):
    """`loss = CE(z1, S_r(nu)) + lambda_e JS(softmax z0, softmax z1)`, z0 at the start, z1 one step further.

    The start is `s = box(x +- eps li_y)`, a random share of its entries replaced by noise, with the label
    information `li_c = sign(grad CE(f(grey), c))` taken at a grey image every few batches.
    `lambda_e = lambda e / T` in epoch e of T.

    Stored: the label information `li` of each class (in multiples of eps, so that it follows eps), the
    current `lam`, and the number of batches seen in this epoch.
    """

    hyper: LIETHyper
    li: Tensor | None
    lam: Tensor

    def __init__(self, threat: Threat, hyper: LIETHyper) -> None:
        super().__init__(threat, hyper)
        self.smoothing = Smoothing(hyper.nu, "random")
        self.epochs = 1
        self.batches = BatchCounter()
        self.register_buffer("li", None)
        self.register_buffer("lam", torch.tensor(hyper.lam))

    def setup(self, *, shape: tuple[int, ...], epochs: int, classes: int | None = None, **_: Any) -> None:
        """Allocate the label information of each class; the length of the ramp is the number of epochs."""
        if classes is None:
            raise UserError("liet stores an image per class; call setup(classes=)")
        self.epochs = epochs
        self.li = torch.zeros(classes, *shape, device=self.lam.device)

    def begin_epoch(self, epoch: int) -> None:
        """Set the weight of this epoch; its first batch updates the label information."""
        self.batches.seen = 0
        if self.hyper.ramp:
            self.lam.fill_(self.hyper.lam * epoch / self.epochs)

    def draw(self, x: Tensor) -> tuple[Tensor, ...]:
        """Draw which pixels are replaced, by what noise, and one sign for the whole batch."""
        first = self.first_row == 0  # a batch that comes in parts has one share and one sign
        if first:
            self.share = torch.empty((), dtype=torch.float32, device=x.device)
            self.share.uniform_(self.hyper.lo, self.hyper.hi)
        replaced = torch.rand(x.shape, device=x.device) < self.share
        noise = self.threat.random_start(x) * self.hyper.k
        if first:
            self.sign = torch.randint(0, 2, (), device=x.device) * 2 - 1
        return replaced, noise, self.sign

    def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
        """Take one step of size eps from the clamped start."""
        if self.li is None:
            raise UserError("this method stores an image per class; call setup(...) first")
        x, threat = batch.x, self.threat
        replaced, noise, sign = batch.noise
        if batch.first_row == 0 and self.batches.due(self.hyper.every):
            self._refresh(self.li, model, batch)
        information = threat.eps * self.li.to(x)[batch.y]
        start = threat.clamp(x + sign * torch.where(replaced, noise, information))
        g, z0 = self.attack_gradient(model, start, batch.y, batch.loss_scale, keep_graph=True)
        if self.hyper.clip_ball:
            x_adv = threat.projected_step(x, start - x, g, threat.eps)
        else:
            x_adv = threat.step(start, g, threat.eps)
        return Crafted(x_adv, g, logits=z0.detach(), step_size=threat.eps, kept=(z0,))

    def _refresh(self, li: Tensor, model: nn.Module, batch: Inputs) -> None:
        """Store the signs of the gradients at grey images, one per class, in evaluation mode."""
        box = self.threat.box
        grey = torch.full_like(li, 0.0 if box is None else sum(box) / 2, dtype=batch.x.dtype)
        labels = torch.arange(len(li), device=li.device)
        with evaluating(model):
            g, _ = self.attack_gradient(model, grey, labels, batch.loss_scale)
        li.copy_(g.sign())

    def objective(self, model: nn.Module, logits: Tensor, batch: Inputs, crafted: Crafted) -> Tensor:
        """Return smoothed cross-entropy plus the divergence, with gradients through both passes."""
        return self.train_loss(logits, batch.y) + self.lam * divergence(crafted.kept[0], logits)


def divergence(a: Tensor, b: Tensor) -> Tensor:
    """Return the mean Jensen-Shannon divergence of two batches of predictions, given their logits."""
    # All logarithms: a probability that underflowed keeps a finite gradient.
    p, q = precise(a).log_softmax(1), precise(b).log_softmax(1)
    middle = torch.logaddexp(p, q) - math.log(2)
    halves = [F.kl_div(middle, side, reduction="batchmean", log_target=True) for side in (p, q)]
    return (halves[0] + halves[1]) / 2
