"""Ordinary training on clean inputs: the baseline for cost and accuracy."""

from torch import nn

from sora.methods import Crafted, Inputs, Method, register


@register(
    "benign",
    "ordinary training on clean inputs",
    group="ordinary training",
    forwards="1",
    backwards="1",
    paper_cost="1 / 1",
    cost=1,
    norms=("linf", "l2"),
    has_pert_align=False,
    adversarial=False,
)
class Benign(Method):
    """`loss = L(x)`."""

    def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
        """Return the batch, unchanged."""
        return Crafted(batch.x)
