"""FGSM-MEP-CS: FGSM-MEP with ConvergeSmooth's constraint on the clean loss."""

from dataclasses import dataclass

from sora.methods import register
from sora.methods._converge import ConvergeHyper, ConvergeSmooth
from sora.methods.fgsm_mep import FGSMMEP, FGSMMEPHyper


@dataclass(frozen=True)
class FGSMMEPCSHyper(ConvergeHyper, FGSMMEPHyper):
    """The hyper-parameters of FGSM-MEP-CS: those of FGSM-MEP and those of the constraint."""


@register(
    "fgsm-mep-cs",
    "FGSM-MEP with a limit on how far the clean loss may move between epochs",
    group="one step, with a memory",
    paper="Zhao et al., Fast Adversarial Training with Smooth Convergence",
    venue="ICCV 2023",
    forwards="3",
    backwards="1 in + 1 (two graphs)",
    pass_options=("initialize", "reg_single", "reg_multi", "strict"),
    cost=3,
    memory="1 graph, 2 per image",
    needs=("setup", "index"),
    uses_epochs=("w2",),
    single_process=True,
    own_targets="phi",
)
class FGSMMEPCS(ConvergeSmooth, FGSMMEP):
    """`loss = CE(z1, S_o(phi)) + w2 sign(Lb - u) Lb` where `|Lb - u|` is too large; Lb is the loss at x."""

    hyper: FGSMMEPCSHyper
