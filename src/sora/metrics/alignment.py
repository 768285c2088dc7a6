"""How far the input gradient turns between two points: cosines and the linearity coefficient."""

from __future__ import annotations

from torch import Tensor

from sora import curvature
from sora.metrics import register
from sora.metrics._batch import AttackedBatch


@register("gradalign", "cosine of the gradients at x and at a random point of the ball", colour="#1592a0")
def grad_align(batch: AttackedBatch) -> Tensor:
    """GradAlign's cosine; the random point is not clamped to the box."""
    noisy = batch.x + batch.threat.random_start(batch.x, batch.generator(1))
    return curvature.pert_align(batch.clean.gradient, batch.gradient_at(noisy).gradient)


# Not drawn: a run logs PertAlign and linearity of its training batches, and traces show those.
@register("pertalign", "PertAlign: cosine of the gradients at x and at the FGSM example")
def pert_align(batch: AttackedBatch) -> Tensor:
    """PertAlign of the clean images and their FGSM examples."""
    return curvature.pert_align(batch.clean.gradient, batch.adversarial.gradient)


@register(
    "altpertalign", "AltPertAlign of the gradients at x and at the FGSM example", colour="#1592a0", line="--"
)
def alt_pert_align(batch: AttackedBatch) -> Tensor:
    """AltPertAlign of the clean images and their FGSM examples."""
    return curvature.alt_pert_align(batch.clean.gradient, batch.adversarial.gradient)


@register("linearity", "linearity coefficient of the gradients at x and at the FGSM example")
def linearity(batch: AttackedBatch) -> Tensor:
    """The linearity coefficient of the clean images and their FGSM examples."""
    return curvature.linearity(batch.clean.gradient, batch.adversarial.gradient, batch.threat.norm)
