"""FGSM-RS-CS: one unprojected step from noise, with ConvergeSmooth's constraint on the clean loss."""

from dataclasses import dataclass

from torch import Tensor, nn

from sora.methods import Crafted, Inputs, Smoothing, option, register
from sora.methods._base import RandomStart
from sora.methods._converge import ConvergeHyper, ConvergeSmooth
from sora.threat import Threat


@dataclass(frozen=True)
class FGSMRSCSHyper(ConvergeHyper):
    """The hyper-parameters of FGSM-RS-CS."""

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
    cost=3,
    memory="1 graph",
    needs=("setup",),
    uses_epochs=("w2",),
    single_process=True,
    own_targets="phi",
)
class FGSMRSCS(ConvergeSmooth, RandomStart):
    """`loss = CE(z1, S_o(phi)) + w2 sign(Lb - u) Lb` where `|Lb - u|` is too large; Lb is the loss at s."""

    hyper: FGSMRSCSHyper

    def __init__(self, threat: Threat, hyper: FGSMRSCSHyper) -> None:
        super().__init__(threat, hyper)
        self.smoothing = Smoothing(1 - hyper.phi, "others", smooth_attack=False)

    def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
        """Take one step of eps from the clamped noise, not projected onto the ball; hard labels."""
        threat = self.threat
        start = threat.clamp(batch.x + batch.noise[0])
        g, z0 = self.attack_gradient(model, start, batch.y, batch.loss_scale, keep_graph=self.keeps_graph)
        x_adv = threat.step(start, g, threat.eps)
        return Crafted(x_adv, g, logits=z0.detach(), step_size=threat.eps, kept=(z0, start))

    def clean_input(self, batch: Inputs, crafted: Crafted) -> Tensor:
        """Return the attack's start, where FGSM-RS-CS takes the clean loss."""
        return crafted.kept[1]
