"""The guard's second look: PertAlign of a few watched images and their FGSM examples, in evaluation mode.

The images are always the same: held-out ones, or training images if none are held out. A look confirms or
dismisses what PertAlign of the training batches suggests. For methods whose steps define no PertAlign, looks
at regular intervals take its place.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sora import metrics
from sora._passes import frozen
from sora.data import stratified
from sora.methods import StepOutput
from sora.threat import Threat
from sora.training import distributed
from sora.training.hooks import Hook
from sora.training.run import Run

EVERY = 10  # steps from one regular look to the next
IMAGES = 16
SHARE = 4  # at most a quarter of the batch size, so that a look stays cheap where batches are small
NAME = "watched_align"


class SecondLook(Hook):
    """Measures the chosen images: when asked, and every `EVERY` steps if `regular`.

    Args:
        regular: Add the value to the numbers of every `EVERY`-th step.
    """

    def __init__(self, regular: bool) -> None:
        self.regular = regular

    def start(self, run: Run) -> None:
        """Choose the images."""
        images = run.splits.watched
        count = max(1, min(IMAGES, run.settings.batch_size // SHARE, len(images)))
        chosen = stratified(images.labels, count, seed=0)
        self.x, self.y = next(images.subset(chosen).batches(count, run.device))

    def after_step(self, run: Run, out: StepOutput) -> None:
        """Measure, without waiting for the value."""
        if self.regular and run.state.step % EVERY == 0:
            run.journal.add(NAME, self.measure(run.state.model, run.threat))

    def value(self, run: Run) -> float:
        """The value now, averaged over ranks; all of them must call this together."""
        value = self.measure(run.state.model, run.threat).float()
        return distributed.mean_over_ranks(torch.stack([value])).item()

    def measure(self, model: nn.Module, threat: Threat) -> Tensor:
        """PertAlign of the images as a 0-d tensor; the network stays as it was."""
        with frozen(model):
            batch = metrics.AttackedBatch(model, self.x, self.y, threat)
            return metrics.create("pertalign")(batch)
