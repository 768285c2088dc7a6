"""FGSM-MEP-CS: FGSM-MEP with ConvergeSmooth's constraint on the clean loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from sora.methods import Crafted, Inputs, option, register
from sora.methods._converge import Constraint, ConvergeHyper, constrained_loss
from sora.methods.fgsm_mep import FGSMMEP, FGSMMEPHyper
from sora.threat import Threat


@dataclass(frozen=True)
class FGSMMEPCSHyper(ConvergeHyper, FGSMMEPHyper):
    """The hyper-parameters of FGSM-MEP-CS: those of FGSM-MEP and those of the constraint."""

    lam: float = option(
        10.0, "weight of the two regularisers (lambda), without effect while both are off", low=0
    )


@register(
    "fgsm-mep-cs",
    "FGSM-MEP with a limit on how far the clean loss may move between epochs",
    group="one step, with a memory",
    paper="Zhao et al., Fast Adversarial Training with Smooth Convergence",
    venue="ICCV 2023",
    forwards="3",
    backwards="1 in + 1 (two graphs)",
    pass_options=("initialize", "reg_single", "reg_multi", "strict"),
    paper_cost="-",
    cost=3,
    memory="1 graph, 2 per image",
    needs=("setup", "index"),
    uses_epochs=("w2",),
    single_process=True,
    own_targets="phi",
)
class FGSMMEPCS(FGSMMEP):
    """`loss = CE(z1, S_o(phi)) + w2 sign(Lb - u) Lb` where `|Lb - u|` is too large; Lb is the loss at x."""

    hyper_class = FGSMMEPCSHyper
    hyper: FGSMMEPCSHyper

    def __init__(self, threat: Threat, hyper: FGSMMEPCSHyper) -> None:
        super().__init__(threat, hyper)
        self.constraint = Constraint(hyper)

    @property
    def keeps_graph(self) -> bool:
        """Only with `reg_single` or `initialize`; as published, both are off."""
        return self.hyper.reg_single or self.hyper.initialize

    def setup(self, **known: Any) -> None:
        """Allocate FGSM-MEP's memory and set the epochs in which the constraint is active."""
        super().setup(**known)
        self.constraint.setup(known["epochs"], known.get("drops", ()))

    def begin_epoch(self, epoch: int) -> None:
        """Take over the mean clean loss of the last epoch; refill the memory if it is due."""
        super().begin_epoch(epoch)
        self.constraint.begin_epoch(epoch)

    def objective(self, model: nn.Module, logits: Tensor, batch: Inputs, crafted: Crafted) -> Tensor:
        """Return smoothed cross-entropy, the regularisers that are on, and the constraint's term."""
        z0 = crafted.kept[0]
        return constrained_loss(self, self.constraint, self.hyper.lam, model, logits, batch, z0, batch.x)
