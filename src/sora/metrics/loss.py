"""How the loss and the predictions change inside the ball."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from sora._passes import cross_entropy
from sora.metrics import register
from sora.metrics._batch import AttackedBatch


@register("aae", "share of FGSM examples whose loss is lower than that of the clean image", colour="#c1272d")
def abnormal_share(batch: AttackedBatch) -> Tensor:
    """Share of abnormal adversarial examples (AAER)."""
    passes = (batch.clean, batch.adversarial)
    clean, adversarial = (cross_entropy(each.logits, batch.y, "none") for each in passes)
    return (clean > adversarial).float().mean()


@register(
    "kl", "KL divergence of the predictions on clean and FGSM images", scale="log, scaled", colour="#3c8d40"
)
def kl(batch: AttackedBatch) -> Tensor:
    """KL(P, Q) of the predictions P on the clean image and Q on the FGSM example, as in TRADES."""
    passes = (batch.clean, batch.adversarial)
    clean, adversarial = (F.log_softmax(each.logits.float(), 1) for each in passes)
    return F.kl_div(adversarial, clean, reduction="batchmean", log_target=True)


@register(
    "elle", "squared deviation of the loss from linearity in the ball", scale="log, scaled", colour="#3c8d40",
    line="--",
)  # fmt: skip
def elle(batch: AttackedBatch) -> Tensor:
    """ELLE's squared gap between the loss and its linear interpolation between two random points."""
    x, generator = batch.x, batch.generator(2)
    a, b = (x + batch.threat.random_start(x, generator) for _ in range(2))
    weight = torch.rand(len(x), generator=generator, device=x.device, dtype=x.dtype)
    between = torch.lerp(a, b, weight.view(-1, *[1] * (x.dim() - 1)))
    line = (1 - weight) * batch.losses_at(a) + weight * batch.losses_at(b)
    return (batch.losses_at(between) - line).square().mean()
