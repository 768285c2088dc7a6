"""FGSM-LASS: a small network predicts each image's step size and is trained to raise the loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD

from sora._passes import frozen
from sora.errors import UserError
from sora.methods import Crafted, Hyper, Inputs, OwnOptimizer, Smoothing, option, register
from sora.methods._base import RandomStart
from sora.methods._state import BatchCounter
from sora.threat import Threat

LARGEST = 1.25  # step size in multiples of eps that a prediction of 1 stands for
WIDTH, MOMENTUM, DECAY = 64, 0.9, 5e-4


@dataclass(frozen=True)
class FGSMLASSHyper(Hyper):
    """The hyper-parameters of FGSM-LASS; the defaults are those of the authors' TinyImageNet script."""

    every: int = option(20, "batches between two updates of the predictor (q)", low=1)
    phi: float = option(0.9, "target of the true class; the others share the rest equally", low=0, high=1)
    step_lr: float = option(6e-5, "learning rate (SGD) of the predictor, never lowered", low=0)


@register(
    "fgsm-lass",
    "FGSM-RS with a step size per image that a small trained network predicts",
    group="one step",
    paper="code without a published paper (GitHub: shikang-0410/FGSM-LASS, 48747b3)",
    forwards="2 + 1/q",
    backwards="1 in + 1 + 1/q",
    cost=2,
    memory="a small network",
    needs=("setup",),
    single_process=True,
    own_targets="phi",
)
class FGSMLASS(RandomStart):
    """`x_adv = box(x + clip(s - x + a_i sign(g)))` with `a_i = 1.25 eps A(x_i)`, A a trained predictor.

    Stored: the predictor, its optimiser, and the number of batches seen in this epoch.
    """

    hyper: FGSMLASSHyper
    place: Tensor

    def __init__(self, threat: Threat, hyper: FGSMLASSHyper) -> None:
        super().__init__(threat, hyper)
        self.smoothing = Smoothing(1 - hyper.phi, "others", smooth_attack=False)
        self.batches = BatchCounter()
        self.predictor: StepPredictor | None = None
        self.register_buffer("place", torch.zeros(()), persistent=False)  # only to find the device

    def setup(self, *, shape: tuple[int, ...], **_: Any) -> None:
        """Create the predictor for images of this shape, and its optimiser."""
        self.predictor = StepPredictor(shape[0]).to(self.place.device)
        rate = self.hyper.step_lr
        optimizer = SGD(self.predictor.parameters(), lr=rate, momentum=MOMENTUM, weight_decay=DECAY)
        self.sgd = OwnOptimizer(optimizer)

    def begin_epoch(self, epoch: int) -> None:
        """Start counting: the first batch of an epoch updates the predictor."""
        self.batches.seen = 0

    def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
        """Take one step of predicted size from the clamped noisy input, projected onto the ball."""
        if self.predictor is None:
            raise UserError("this method has a predictor of step sizes; call setup(...) first")
        x, threat = batch.x, self.threat
        start = threat.clamp(x + batch.noise[0])
        g, logits = self.attack_gradient(model, start, batch.y, batch.loss_scale)
        # A batch that comes in parts trains the predictor with its first: all parts use the same predictor.
        if batch.first_row == 0 and self.batches.due(self.hyper.every):
            self._train_predictor(self.predictor, model, batch, start, g)
        self.predictor.eval()
        with torch.no_grad():
            lengths = self._lengths(self.predictor, x)
        x_adv = threat.projected_step(x, start - x, g, lengths)
        return Crafted(x_adv, g, logits=logits, step_size=lengths.mean())

    def _lengths(self, predictor: StepPredictor, x: Tensor) -> Tensor:
        """Return the step size of each image, shaped to broadcast against it."""
        fractions: Tensor = predictor(x).to(x.dtype)
        return fractions.view(-1, *[1] * (x.dim() - 1)) * (LARGEST * self.threat.eps)

    def _train_predictor(
        self, predictor: StepPredictor, model: nn.Module, batch: Inputs, start: Tensor, g: Tensor
    ) -> None:
        """Train the predictor by one step that raises the loss of the model, which is in evaluation mode."""
        x = batch.x
        predictor.train()
        with frozen(model), torch.enable_grad():
            moved = start - x + self._lengths(predictor, x) * self.threat.direction(g)
            moved = self.threat.project(moved)  # no gradient where it clips
            clamped = self.threat.clamp(x + moved) - x
            delta = moved + (clamped - moved).detach()  # the box changes the value, not the gradient
            self.sgd.minimize(-self.train_loss(model(x + delta), batch.y), batch.loss_scale)


class StepPredictor(nn.Module):
    """From images to numbers between 0 and 1; an input without height and width is an image of one pixel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.wide = nn.Conv2d(channels, WIDTH, 3, stride=2, padding=1, bias=False)
        self.wide_norm = nn.BatchNorm2d(WIDTH)
        self.point = nn.Conv2d(channels, WIDTH, 1, bias=False)
        self.point_norm = nn.BatchNorm2d(WIDTH)
        self.last = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the fraction of the largest step, shape (B,)."""
        x = x.to(self.last.weight.dtype)
        x = x if x.dim() == 4 else x.flatten(1)[:, :, None, None]
        # The 1x1 convolution has stride 2. Given as an option of the layer, the CPU kernel of torch for
        # channels-last images of one channel writes outside its memory.
        point = self.point(x[:, :, ::2, ::2])
        hidden = (self.wide_norm(self.wide(x)) + self.point_norm(point)).relu()
        fractions: Tensor = self.last(hidden.mean((2, 3))).squeeze(1).sigmoid()
        return fractions
