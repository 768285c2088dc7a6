"""Numbers of the held-out slice while a run trains, at a price: each costs passes of its own."""

from __future__ import annotations

import torch
from torch import nn

from sora.data import ImageSet, stratified
from sora.errors import UserError
from sora.evaluation.diagnostics import diagnose
from sora.threat import Threat

MOST = 256  # images looked at: enough for a curve, cheap enough for every step


class Monitors:
    """Which numbers are wanted and how often; always the same images and the same noise.

    Args:
        names: From `sora.evaluation.diagnostics.DIAGNOSTICS`; none: nothing is ever due.
        every: Steps between two looks.
        images: The held-out slice.
        threat: The norm ball of the training.
        device: Where the model is.
    """

    def __init__(
        self, names: tuple[str, ...], every: int, images: ImageSet, threat: Threat, device: torch.device
    ) -> None:
        if names and not len(images):
            raise UserError("monitors look at the held-out slice, and --holdout 0 leaves none")
        self.names, self.every, self.threat = names, every, threat
        if names:
            chosen = stratified(images.labels, min(MOST, len(images)), seed=0)
            self.x, self.y = next(images.subset(chosen).batches(MOST, device))

    def due(self, step: int) -> bool:
        """Whether this step is looked at."""
        return bool(self.names) and step % self.every == 0

    def look(self, model: nn.Module) -> dict[str, float]:
        """The numbers of the model as it is, and how many images they are of."""
        return {**diagnose(model, self.x, self.y, self.threat, self.names), "n": len(self.y)}
