"""PertAlign of a few watched images now and then, for methods whose own steps define none.

The guard needs the gradients at an image and at its FGSM example. Most methods compute both for every batch;
for the others they are computed here, on the same few images each time: held-out ones, or training images if
none are held out.
"""

from __future__ import annotations

from torch import Tensor, nn

from sora import metrics
from sora._passes import frozen
from sora.data import stratified
from sora.methods import StepOutput
from sora.threat import Threat
from sora.training.hooks import Hook
from sora.training.run import Run

EVERY = 10  # steps
IMAGES = 16
SHARE = 4  # at most this part of a batch, so that a small batch is not outweighed
NAME = "watched_align"


class SecondLook(Hook):
    """Adds the PertAlign of the chosen images to the numbers of every `EVERY`-th step."""

    def start(self, run: Run) -> None:
        """Choose the images."""
        images = run.splits.watched
        count = max(1, min(IMAGES, run.settings.batch_size // SHARE, len(images)))
        chosen = stratified(images.labels, count, seed=0)
        self.x, self.y = next(images.subset(chosen).batches(count, run.device))

    def after_step(self, run: Run, out: StepOutput) -> None:
        """Measure, without waiting for the value."""
        if run.state.step % EVERY == 0:
            run.journal.add(NAME, self.measure(run.state.model, run.threat))

    def measure(self, model: nn.Module, threat: Threat) -> Tensor:
        """PertAlign of the images as a 0-d tensor, in evaluation mode; the network stays as it was."""
        with frozen(model):
            batch = metrics.AttackedBatch(model, self.x, self.y, threat)
            return metrics.create("pertalign")(batch)
