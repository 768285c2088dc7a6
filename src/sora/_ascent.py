"""One step up the gradient, for code that attacks with steps of its own."""

from __future__ import annotations

from torch import Tensor

from sora.threat import Threat


def step(threat: Threat, at: Tensor, gradient: Tensor, length: float | Tensor) -> Tensor:
    """`at` moved by `length` along the gradient's direction and clamped to the box, not to the ball."""
    return threat.clamp(at + threat.direction(gradient) * length)
