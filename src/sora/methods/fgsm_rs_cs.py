"""FGSM-RS-CS: one unprojected step from noise, with ConvergeSmooth's constraint on the clean loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from sora.methods import Crafted, Inputs, Method, Smoothing, option, register
from sora.methods._converge import Constraint, ConvergeHyper, constrained_loss
from sora.threat import Threat


@dataclass(frozen=True)
class FGSMRSCSHyper(ConvergeHyper):
    """The hyper-parameters of FGSM-RS-CS."""

    phi: float = option(0.6, "target of the true class; the others share the rest equally", low=0, high=1)
    lam: float = option(
        7.0, "weight of the two regularisers (lambda), without effect while both are off", low=0
    )


@register(
    "fgsm-rs-cs",
    "one unprojected step from noise, and a limit on how far the clean loss may move between epochs",
    group="one step, regularised",
    paper="Zhao et al., Fast Adversarial Training with Smooth Convergence",
    venue="ICCV 2023",
    forwards="3",
    backwards="1 in + 1 (two graphs)",
    pass_options=("initialize", "reg_single", "reg_multi", "strict"),
    paper_cost="-",
    cost=3,
    memory="1 graph",
    needs=("setup",),
    uses_epochs=("w2",),
    single_process=True,
    own_targets="phi",
)
class FGSMRSCS(Method):
    """`loss = CE(z1, S_o(phi)) + w2 sign(Lb - u) Lb` where `|Lb - u|` is too large; Lb is the loss at s."""

    hyper_class = FGSMRSCSHyper
    hyper: FGSMRSCSHyper

    def __init__(self, threat: Threat, hyper: FGSMRSCSHyper) -> None:
        super().__init__(threat, hyper)
        self.smoothing = Smoothing(1 - hyper.phi, "others", smooth_attack=False)
        self.constraint = Constraint(hyper)

    def setup(self, *, epochs: int, drops: tuple[float, ...] = (), **_: Any) -> None:
        """Set the epochs in which the constraint is active."""
        self.constraint.setup(epochs, drops)

    def begin_epoch(self, epoch: int) -> None:
        """Take over the mean clean loss of the last epoch."""
        self.constraint.begin_epoch(epoch)

    def draw(self, x: Tensor) -> tuple[Tensor, ...]:
        """Draw noise inside the ball."""
        return (self.threat.random_start(x),)

    def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
        """Take one step of eps from the clamped noise, not projected onto the ball; hard labels."""
        x, threat, hyper = batch.x, self.threat, self.hyper
        start, keep = threat.clamp(x + batch.noise[0]), hyper.reg_single or hyper.initialize
        g, z0 = self.attack_gradient(model, start, batch.y, batch.loss_scale, keep_graph=keep)
        x_adv = threat.step(start, g, threat.eps)
        return Crafted(x_adv, g, logits=z0.detach(), step_size=threat.eps, kept=(z0, start))

    def objective(self, model: nn.Module, logits: Tensor, batch: Inputs, crafted: Crafted) -> Tensor:
        """Return smoothed cross-entropy, the regularisers that are on, and the constraint's term."""
        z0, start = crafted.kept
        return constrained_loss(self, self.constraint, self.hyper.lam, model, logits, batch, z0, start)
