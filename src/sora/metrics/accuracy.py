"""Accuracy under attack."""

from __future__ import annotations

import torch
from torch import Tensor

from sora.attacks import pgd
from sora.metrics import register
from sora.metrics._batch import AttackedBatch


@register("fgsm", "accuracy under FGSM", colour="#e08214")
def fgsm_accuracy(batch: AttackedBatch) -> Tensor:
    """Accuracy on the FGSM examples."""
    return (batch.adversarial.logits.argmax(1) == batch.y).float().mean()


@register("pgd", "accuracy under PGD-10", colour="#8b68c8")
def pgd_accuracy(batch: AttackedBatch) -> Tensor:
    """Accuracy under PGD-10 from a random start."""
    x_adv = pgd(batch.model, batch.x, batch.y, batch.threat, generator=batch.generator(3))
    with torch.no_grad():
        logits: Tensor = batch.model(x_adv)
    return (logits.argmax(1) == batch.y).float().mean()
