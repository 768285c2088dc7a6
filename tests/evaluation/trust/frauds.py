"""Models that look robust and are not: each hides the gradients of an honest network in its own way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class _Around(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        return logits


class ScaledLogits(_Around):
    """Softmax saturates: the cross-entropy and its gradient are zero in float32."""

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        return 1e4 * logits


class QuantisedInput(_Around):
    """Rounding to 8 bits has a gradient of zero."""

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model((x * 255).round() / 255)
        return logits


class RandomLayer(_Around):
    """Noise is added to the input, also in evaluation mode."""

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x + 0.1 * torch.randn_like(x))
        return logits


class SaturatedSoftmax(_Around):
    """What it returns as logits are sharp probabilities, shifted so that they do not look like ones."""

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        return 10 * (100 * logits).softmax(1) - 5


class _NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return torch.zeros_like(gradient)


class ZeroGradientStem(_Around):
    """The first operation passes images on and no gradient back."""

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(_NoGradient.apply(x))
        return logits


class AlwaysTraining(_Around):
    """Its modules ignore eval(): BatchNorm uses the statistics of the batch."""

    def train(self, mode: bool = True) -> AlwaysTraining:
        super().train(True)
        return self


FRAUDS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "scaled logits": ScaledLogits,
    "quantised input": QuantisedInput,
    "random layer": RandomLayer,
    "saturated softmax": SaturatedSoftmax,
    "zero-gradient stem": ZeroGradientStem,
    "training mode": AlwaysTraining,
}
CAUGHT_BY = {
    "scaled logits": {"zero gradients", "rising loss", "smoothed transfer"},
    "quantised input": {"zero gradients", "smoothed transfer"},
    "random layer": {"repeated pass"},
    "saturated softmax": {"zero gradients"},
    "zero-gradient stem": {"zero gradients"},
    "training mode": {"evaluation mode", "other batch"},
}
"""Tests that must be among those each fraud fails."""


class LikeOverfitted(_Around):
    """One step from an image of 8 bits goes the wrong way; from a random start the gradient is the true one.

    This is what catastrophic overfitting amounts to, without the training that leads there.
    """

    def forward(self, x: Tensor) -> Tensor:
        levels = 255 * x
        clean = ((levels - levels.round()).abs() < 1e-3).flatten(1).float().mean(1) > 0.9
        reversed_gradient = 2 * x.detach() - x
        logits: Tensor = self.model(torch.where(clean[:, None, None, None], reversed_gradient, x))
        return logits
