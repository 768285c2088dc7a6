"""The passes that metrics share: at the clean images and at their FGSM examples."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sora._passes import cross_entropy, input_gradient
from sora.threat import Threat


class GradientAndLogits(NamedTuple):
    """What one forward and one backward pass give."""

    gradient: Tensor
    """Gradient of the mean cross-entropy with respect to the input."""
    logits: Tensor


class AttackedBatch:
    """A batch, its FGSM examples, and a frozen model's passes over both, each made once and only if needed.

    Args:
        model: From inputs to logits, in evaluation mode.
        x: Clean images, shape (B, ...).
        y: Class labels, shape (B,).
        threat: The norm ball and the box.
        seed: Seed of the metrics' random numbers.
    """

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int = 0) -> None:
        self.model, self.x, self.y, self.threat, self.seed = model, x, y, threat, seed

    def generator(self, stream: int) -> torch.Generator:
        """A new random generator; metrics with different `stream` numbers draw independent numbers."""
        return torch.Generator(self.x.device).manual_seed(self.seed * 8 + stream)

    @cached_property
    def clean(self) -> GradientAndLogits:
        """The pass at the clean images."""
        return self.gradient_at(self.x)

    @cached_property
    def x_adv(self) -> Tensor:
        """The FGSM examples, without a random start."""
        return self.threat.step(self.x, self.clean.gradient, self.threat.eps)

    @cached_property
    def adversarial(self) -> GradientAndLogits:
        """The pass at the FGSM examples."""
        return self.gradient_at(self.x_adv)

    def gradient_at(self, z: Tensor) -> GradientAndLogits:
        """Input gradient and logits at `z`."""
        return GradientAndLogits(*input_gradient(self.model, z, self.y))

    def losses_at(self, z: Tensor) -> Tensor:
        """Each example's cross-entropy at `z`, without a graph."""
        with torch.no_grad():
            return cross_entropy(self.model(z), self.y, "none")
