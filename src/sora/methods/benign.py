"""Ordinary training on clean inputs: the cost and accuracy everything else is compared with."""

from __future__ import annotations

from torch import nn

from sora.methods._base import Crafted, Inputs, Method
from sora.methods._registry import register


@register(
    "benign",
    "ordinary training on clean inputs",
    forwards="1",
    backwards="1",
    paper_cost="1 / 1",
    norms=("linf", "l2"),
)
class Benign(Method):
    """`loss = L(x)`."""

    aligned = False

    def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
        """Leave the batch as it is."""
        return Crafted(batch.x)
