"""What the masking tests measure, each quantity once, on images chosen so that all of them stay cheap.

Passes per image of the evaluation, a forward pass counted as 1 and a gradient as 2; PGD-10 is 22:

| on | quantity | passes |
| --- | --- | ---: |
| all images (at most 512) | clean, repeated, other batch, gradient, FGSM | 6 |
| every 2nd | PGD-10, noise | 12 |
| every 4th | PGD-10 at a large radius, transfer from the smoothed model, from a second model | 5 + 6 + 6 |
| every 8th | Square, on the images PGD-10 leaves | at most 10 |

At most 45 together, 39 without a second model. Below 128 images the smaller parts have at least 16.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sora._passes import Loss, ascend, cross_entropy, input_gradient
from sora.attacks.pgd import STEP
from sora.evaluation._checks import relative_difference
from sora.evaluation.examples import Examples
from sora.threat import Threat

MOST = 512  # images
LEAST = 16  # images in the smaller parts
STEPS = 10
NOISE_DRAWS = 3
HALF, QUARTER, EIGHTH = 2, 4, 8

LossOf = Callable[[Tensor], Loss]  # from labels


class Attacked(NamedTuple):
    """Which images are still correctly classified, and their loss."""

    correct: Tensor
    loss: Tensor


class Measurements:
    """One model, some of the images of an evaluation, and what was measured on them so far.

    Args:
        model: In evaluation mode, without parameter gradients.
        examples: The images of the evaluation; evenly spaced ones are used.
        threat: The norm ball and the box.
        device: Where to compute.
        batch_size: Images passed together.
    """

    def __init__(
        self, model: nn.Module, examples: Examples, threat: Threat, device: torch.device, batch_size: int
    ) -> None:
        self.model, self.threat, self._device, self._batch_size = model, threat, device, batch_size
        total = len(examples.labels)
        self.n = min(total, MOST)
        positions = torch.arange(self.n) * total // self.n
        self.x, self.y = examples.take(positions, torch.device("cpu"))
        self.chance = int(self.y.bincount().max()) / self.n

    def part(self, stride: int) -> Tensor:
        """Positions of every second, fourth or eighth image; closer together if those are fewer than 16."""
        while stride > 1 and self.n // stride < LEAST:
            stride //= 2
        return torch.arange(0, self.n, stride)

    def each_batch(self, function: Callable[[Tensor, Tensor], Tensor], rows: Tensor) -> Tensor:
        """A function of images and labels on these rows, batch by batch."""
        results = [
            function(self.x[chunk].to(self._device), self.y[chunk].to(self._device)).cpu()
            for chunk in torch.split(rows, self._batch_size)
        ]
        return torch.cat(results)

    @torch.no_grad()
    def _logits(self, x: Tensor, y: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        return logits.detach()

    @cached_property
    def clean(self) -> Tensor:
        """Logits of all images."""
        return self.each_batch(self._logits, torch.arange(self.n))

    @cached_property
    def repeated(self) -> Tensor:
        """How far a second pass over the same batches differs, relative to the logits."""
        return relative_difference(self.clean, self.each_batch(self._logits, torch.arange(self.n)))

    @cached_property
    def other_batches(self) -> Tensor:
        """How far the logits of each image differ when it is in a smaller batch with other images."""
        rows = torch.arange(self.n)
        halves = 2 * -(-self.n // self._batch_size)
        # Interleaved: every batch has neighbours that were far apart before, and none is a single image.
        chunks = [rows[start::halves] for start in range(halves)]
        if self.n < 2 * halves:
            chunks = [torch.cat((rows[::2], rows[1::2]))]
        mixed = torch.cat([self.each_batch(self._logits, chunk) for chunk in chunks])
        return relative_difference(self.clean[torch.cat(chunks)], mixed)

    @cached_property
    def gradient_size(self) -> Tensor:
        """The largest absolute component of each image's input gradient."""
        return self.fgsm_and_gradient[1]

    @cached_property
    def fgsm(self) -> Tensor:
        """Which images withstand FGSM."""
        return self.fgsm_and_gradient[0] > 0

    @cached_property
    def fgsm_and_gradient(self) -> tuple[Tensor, Tensor]:
        """Both from the same gradient."""

        def measure(x: Tensor, y: Tensor) -> Tensor:
            gradient = input_gradient(self.model, x, y)[0] * len(x)  # of the sum of the losses
            moved = self.threat.step(x, gradient, self.threat.eps)
            correct = self._logits(moved, y).argmax(1) == y
            return torch.stack((correct.to(x.dtype), gradient.flatten(1).abs().amax(1)), 1)

        first, second = self.each_batch(measure, torch.arange(self.n)).unbind(1)
        return first, second

    @cached_property
    def pgd(self) -> Attacked:
        """PGD-10 from a random start, on every second image."""
        return self.attack(self.model, self.part(HALF), self.threat)

    def correct_under_pgd(self, rows: Tensor) -> Tensor:
        """Which of these images, a part of every second one, withstand PGD-10."""
        return self.pgd.correct[torch.searchsorted(self.part(HALF), rows)]

    def attack(
        self,
        source: nn.Module,
        rows: Tensor,
        threat: Threat,
        loss: LossOf = lambda y: lambda logits: cross_entropy(logits, y),
        *,
        random_start: bool = True,
    ) -> Attacked:
        """PGD-10 on a model, and how the measured model classifies the result."""

        def measure(x: Tensor, y: Tensor) -> Tensor:
            start = threat.clamp(x + threat.random_start(x)) if random_start else x
            at = ascend(loss(y), source, x, start, threat, STEPS, STEP * threat.eps).x_adv
            return self._judged(at, y)

        return _attacked(self.each_batch(measure, rows))

    def noise(self, rows: Tensor) -> Tensor:
        """Which images withstand every one of a few random perturbations of full size."""

        def measure(x: Tensor, y: Tensor) -> Tensor:
            correct = torch.ones_like(y, dtype=torch.bool)
            for _ in range(NOISE_DRAWS):
                delta = self.threat.direction(torch.randn_like(x)) * self.threat.eps
                correct &= self._logits(self.threat.inside(x, delta), y).argmax(1) == y
            return correct

        return self.each_batch(measure, rows)

    def _judged(self, at: Tensor, y: Tensor) -> Tensor:
        logits = self._logits(at, y)
        correct = (logits.argmax(1) == y).to(at.dtype)
        return torch.stack((correct, cross_entropy(logits, y, "none").to(at.dtype)), 1)


def _attacked(columns: Tensor) -> Attacked:
    return Attacked(columns[:, 0] > 0, columns[:, 1])
