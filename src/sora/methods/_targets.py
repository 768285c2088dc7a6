"""The targets of the cross-entropy: hard labels, or labels smoothed in one of three ways."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sora._passes import cross_entropy, precise
from sora._typed import Options, option

Kind = Literal["uniform", "others", "random"]


@dataclass(frozen=True)
class Smoothing(Options):
    """Which labels the cross-entropy of training uses; metrics and evaluation always use hard ones."""

    smoothing: float = option(
        0.0, "label smoothing: share of probability taken from the true class", low=0, high=1
    )
    smoothing_kind: Literal["uniform", "others", "random"] = option(
        "uniform", "how it is spread: over all classes, over the others equally, over the others at random"
    )
    smooth_attack: bool = option(True, "smooth the labels of the attack too, not only the weight update's")

    def loss(self, logits: Tensor, y: Tensor, reduction: str = "mean", *, attack: bool = False) -> Tensor:
        """Cross-entropy with these targets, of the attack or of the weight update."""
        if self.smoothing == 0 or (attack and not self.smooth_attack):
            return cross_entropy(logits, y, reduction)  # one-hot rows would differ in the last bit
        return cross_entropy(logits, soft_targets(logits, y, self.smoothing, self.smoothing_kind), reduction)


def soft_targets(logits: Tensor, y: Tensor, amount: float | Tensor, kind: Kind) -> Tensor:
    """Rows of probabilities, shaped like the logits and in at least float32.

    Args:
        logits: Gives the number of classes, the number format and the device.
        y: Class labels, shape (B,).
        amount: Share of probability taken from the true class.
        kind: `uniform` spreads it over all classes (`S_u`), `others` equally over the other classes (`S_o`
            with phi = 1 - amount), `random` with fresh random weights over the other classes (`S_r`).
    """
    like, classes = precise(logits.detach()), logits.shape[1]
    true = (y.unsqueeze(1) == torch.arange(classes, device=y.device)).to(like.dtype)
    if kind == "uniform":
        return true * (1 - amount) + amount / classes
    weights = 1 - true
    if kind == "random":
        weights = weights * (1 - torch.rand_like(like))  # never 0, so that the sum never is
    # With a single class there are no others, and their share is lost.
    share = weights / weights.sum(1, keepdim=True).clamp(min=torch.finfo(like.dtype).tiny)
    return true * (1 - amount) + amount * share
