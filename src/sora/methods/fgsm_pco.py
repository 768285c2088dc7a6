"""FGSM-PCO: trains on a mixture of the old and the amplified new adversarial example."""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from sora._passes import mse, precise
from sora.methods import Crafted, Inputs, Learned, Method, Smoothing, option, register
from sora.methods._state import Memory, MemoryHyper
from sora.threat import Threat


@dataclass(frozen=True)
class FGSMPCOHyper(MemoryHyper):
    """The hyper-parameters of FGSM-PCO."""

    kappa: float = option(1.5, "factor on the new perturbation in the mixture", low=0)
    phi: float = option(0.6, "target of the true class; the others share the rest equally", low=0, high=1)
    lam: float = option(10.0, "weight of the difference of the distances of the logits (lambda)", low=0)
    mix_graph: bool = option(False, "pass gradients through the mixing ratio too, as the authors' code does")
    box_mix: bool = option(False, "clamp the mixture to valid pixels")


@register(
    "fgsm-pco",
    "trains on a mixture of the image's old and its amplified new adversarial example",
    group="one step, with a memory",
    paper="Wang et al., Preventing Catastrophic Overfitting in Fast Adversarial Training:"
    " A Bi-level Optimization Perspective",
    venue="ECCV 2024",
    forwards="3",
    backwards="1 in + 1 (three graphs)",
    pass_options=("strict",),
    cost=3.5,
    memory="2 graphs, 1 per image",
    needs=("setup", "index"),
    single_process=True,
    own_targets="phi",
)
class FGSMPCO(Method):
    """`loss = CE(z1, S_o(phi)) + lambda |MSE(z2, z0) - MSE(z2, z1)|` at the start, the mixture and `x + d`.

    The mixture is `(1 - p)(x + delta) + p (x + kappa d)` with `d = clip(delta + eps sign(g))` and p the
    probability of the true class at the start `x + delta`; then `delta = d`.

    Stored: `delta` by image, random signs at first and never refilled; how many batches had a gradient that
    is not finite, which leaves it as it is.
    """

    hyper: FGSMPCOHyper
    skipped: Tensor

    def __init__(self, threat: Threat, hyper: FGSMPCOHyper) -> None:
        super().__init__(threat, hyper)
        self.smoothing = Smoothing(1 - hyper.phi, "others")
        self.delta = Memory(hyper, align=hyper.align)
        self.register_buffer("skipped", torch.zeros((), dtype=torch.int64))

    def setup(self, **known: Any) -> None:
        """Allocate a perturbation for every training image."""
        self.delta.allocate(self.skipped.device, **known)
        self.delta.fill_signs(self.threat.eps)

    def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
        """Take one step from the stored perturbation; mix both examples by the confidence at the start."""
        x, threat = batch.x, self.threat
        delta = threat.project(self.delta.read(batch))  # eps may have changed, and float16 rounds up
        g, z0 = self.attack_gradient(model, x + delta, batch.y, batch.loss_scale, keep_graph=True)
        x_new = threat.projected_step(x, delta, g, threat.eps)
        p = precise(z0).softmax(1).gather(1, batch.y.unsqueeze(1)).squeeze(1)
        with torch.set_grad_enabled(self.hyper.mix_graph):
            mixed = mixture(x, delta, x_new - x, p, self.hyper.kappa)
            mixed = threat.clamp(mixed) if self.hyper.box_mix else mixed
        return Crafted(mixed.detach(), g, logits=z0.detach(), step_size=threat.eps, kept=(z0, x_new, mixed))

    def model_input(self, leaf: Tensor, crafted: Crafted) -> Tensor:
        """Connect the input of the update's pass to the mixing ratio, with `mix_graph`."""
        mixed = crafted.kept[2]
        return leaf + (mixed - mixed.detach()) if mixed.requires_grad else leaf  # adds exact zeros

    def objective(self, model: nn.Module, logits: Tensor, batch: Inputs, crafted: Crafted) -> Tensor:
        """Return smoothed cross-entropy at the mixture plus the difference of the distances of logits."""
        z0, x_new, _ = crafted.kept
        z2 = model(x_new)
        difference = (mse(z2, z0) - mse(z2, logits)).abs()
        return self.train_loss(logits, batch.y) + self.hyper.lam * difference

    def update_state(self, batch: Inputs, crafted: Crafted, learned: Learned) -> dict[str, Tensor]:
        """Store the new perturbation, unless the gradient is not finite."""
        usable = cast(Tensor, crafted.gradient).isfinite().all()
        self.delta.write(batch, crafted.kept[1] - batch.x, usable)
        self.skipped.add_(~usable)
        return {"skipped": self.skipped.clone()}


def mixture(x: Tensor, old: Tensor, new: Tensor, p: Tensor, kappa: float) -> Tensor:
    """Return `(1 - p)(x + old) + p (x + kappa new)` with one p per example."""
    p = p.view(-1, *[1] * (x.dim() - 1)).to(x.dtype)
    return x + (1 - p) * old + p * kappa * new
