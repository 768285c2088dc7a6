"""FGSM-MEP, FGSM-EP and FGSM-BP: the attack starts from an earlier perturbation."""

from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from sora._passes import mse, precise
from sora.errors import UserError
from sora.methods import Crafted, Inputs, Learned, Method, Smoothing, option, preset, register
from sora.methods._state import Memory, MemoryHyper
from sora.threat import Threat


@dataclass(frozen=True)
class FGSMMEPHyper(MemoryHyper):
    """The hyper-parameters of FGSM-MEP."""

    alpha: float = option(1.0, "step size in multiples of eps", low=0)
    phi: float = option(0.6, "target of the true class; the others share the rest equally", low=0, high=1)
    lam: float = option(10.0, "weight of the squared distance of the logits (lambda)", low=0)
    mu: float = option(0.3, "weight of the past in the momentum; with 0 there is none (FGSM-EP)", low=0)
    mom_of: Literal["gradient", "sign"] = option(
        "gradient", "what the momentum adds: the l1-normalised gradient (code) or its sign (poster)"
    )
    reset_every: int = option(40, "epochs between new random perturbations; 0 means never", low=0)
    memory: Literal["image", "row"] = option("image", "whose perturbation is stored (row: FGSM-BP)")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.memory == "row" and self.mu > 0:
            raise UserError(f"{self.prefix}mu is {self.mu:g}; allowed with memory=row: 0")
        if self.memory == "row" and self.align:
            raise UserError(f"{self.prefix}align is true; allowed with memory=row: false")


@register(
    "fgsm-mep",
    "one step from the image's last perturbation, which moves along a momentum of its gradients",
    group="one step, with a memory",
    paper="Jia et al., Prior-Guided Adversarial Initialization for Fast Adversarial Training",
    venue="ECCV 2022",
    forwards="2",
    backwards="1 in + 1 (two graphs)",
    pass_options=("strict",),
    cost=2.5,
    memory="1 graph, 2 per image",
    needs=("setup", "index"),
    single_process=True,
    own_targets="phi",
)
class FGSMMEP(Method):
    """`loss = CE(z1, S_o(phi)) + lambda MSE(z1, z0)`, z0 at `s = x + delta_i`, z1 one step further.

    The step trained on is `d = clip(delta_i + alpha sign(g))`. With momentum,
    `mom_i = g / ||g||_1 + mu mom_i` (the norm over the batch) and
    `delta_i = clip(delta_i + alpha sign(mom_i))` is stored; without, d itself.

    Stored: `delta` by image or by row, with momentum also `mom` by image, and how many batches had a
    gradient that is zero or not finite, which changes neither.
    """

    hyper: FGSMMEPHyper
    skipped: Tensor

    def __init__(self, threat: Threat, hyper: FGSMMEPHyper) -> None:
        super().__init__(threat, hyper)
        self.smoothing = Smoothing(1 - hyper.phi, "others")
        self.delta = Memory(hyper, hyper.memory, align=hyper.align)
        # Typical entries are 1 / (entries of a batch), 2.5e-6 for CIFAR: too small for float16.
        self.mom = Memory(hyper, align=hyper.align, half=torch.bfloat16) if hyper.mu > 0 else None
        self.register_buffer("skipped", torch.zeros((), dtype=torch.int64))

    @property
    def keeps_graph(self) -> bool:
        """Whether the loss differentiates through the attack's pass."""
        return True

    def setup(self, **known: Any) -> None:
        """Allocate a perturbation for every training image or row, and the momentum."""
        for memory in (self.delta, self.mom):
            if memory is not None:
                memory.allocate(self.skipped.device, **known)
        self._refill()

    def begin_epoch(self, epoch: int) -> None:
        """Restart from random signs in the first epoch and every `reset_every` epochs after it."""
        every = self.hyper.reset_every
        if epoch == 1 or (every and (epoch - 1) % every == 0):
            self._refill()

    def _refill(self) -> None:
        self.delta.fill_signs(self.threat.eps)
        if self.mom is not None:
            self.mom.stored().zero_()

    def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
        """Take one step from the stored perturbation. The start is not clamped; its pass keeps its graph."""
        x, threat = batch.x, self.threat
        delta = threat.project(self.delta.read(batch))  # eps may have changed, and float16 rounds up
        g, z0 = self.attack_gradient(model, x + delta, batch.y, batch.loss_scale, keep_graph=self.keeps_graph)
        length = self.hyper.alpha * threat.eps
        x_adv = threat.projected_step(x, delta, g, length)
        return Crafted(x_adv, g, logits=z0.detach(), step_size=length, kept=(z0, delta))

    def objective(self, model: nn.Module, logits: Tensor, batch: Inputs, crafted: Crafted) -> Tensor:
        """Return smoothed cross-entropy plus the distance of the logits, differentiable in both passes."""
        return self.train_loss(logits, batch.y) + self.hyper.lam * mse(logits, crafted.kept[0])

    def update_state(self, batch: Inputs, crafted: Crafted, learned: Learned) -> dict[str, Tensor]:
        """Store this batch's perturbation, or the one that the momentum leads to."""
        x, g, delta = batch.x, cast(Tensor, crafted.gradient), crafted.kept[1]
        total = precise(g).abs().sum()
        usable = total.isfinite() & (total > 0)
        new = crafted.x_adv
        if self.mom is not None:
            added = g.sign() if self.hyper.mom_of == "sign" else (precise(g) / total).to(g)
            mom = added + self.hyper.mu * self.mom.read(batch)
            self.mom.write(batch, mom, usable)
            new = self.threat.projected_step(x, delta, mom, self.hyper.alpha * self.threat.eps)
        self.delta.write(batch, new - x, usable)
        self.skipped.add_(~usable)
        return {"skipped": self.skipped.clone()}


_ep = {"memory": "1 graph, 1 per image"}
_bp = {"memory": "1 graph, 1 per row", "needs": ("setup",)}
preset("fgsm-ep", "fgsm-mep", "one step from the image's last perturbation", _ep, mu=0.0)
_rows = "one step from the last batch's perturbation, row by row"
preset("fgsm-bp", "fgsm-mep", _rows, _bp, mu=0.0, memory="row")
