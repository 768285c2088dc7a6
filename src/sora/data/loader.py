"""Batches of one epoch, each a pure function of (seed, attempt, epoch, position)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from sora._devices import free_memory
from sora._seeds import mix
from sora.data.augment import Augment, Transform
from sora.data.dataset import ImageSet
from sora.errors import UserError

if TYPE_CHECKING:
    from sora.data.inputs import ExampleSet

RESIDENT = 0.25  # share of an accelerator's free memory that the training images may take
_ORDER, _AUGMENT = 0, 1  # two streams under one seed


class Batch(NamedTuple):
    """The input of one training step."""

    x: Tensor  # float32 (B, C, H, W) in [0, 1], channels-last, or other floats, on the loader's device
    y: Tensor
    index: Tensor | None  # type: ignore[assignment]  # hides tuple.index, which is not needed here
    """Positions in the training set, for methods with a memory per image; None if unknown."""
    transform: Transform | None  # what augmentation did to each image


class Loader:
    """Shuffled, augmented batches; the last one may be smaller.

    No state is kept between batches, so an epoch resumed at batch `start` continues as if it had never
    stopped. With `world` processes each takes a contiguous part of every batch, and together they see
    what a single process would. Images that take at most a quarter of an accelerator's free memory are copied
    there once, and so are the random choices of an epoch: a batch then needs no copy.
    """

    def __init__(
        self,
        images: ImageSet | ExampleSet,
        batch_size: int,
        augment: Augment,
        seed: int,
        device: torch.device | str = "cpu",
        rank: int = 0,
        world: int = 1,
    ) -> None:
        if not hasattr(images, "subset") or not isinstance(augment, Augment):
            raise UserError("Loader takes a sora.data.ImageSet and a sora.data.Augment")
        if not isinstance(images, ImageSet) and augment != Augment():
            raise UserError("--augment is for uint8 images; augment other data in your own DataLoader")
        if not isinstance(batch_size, int) or not world <= batch_size <= len(images):
            raise UserError(
                f"--batch-size {batch_size} must lie between {world} (one image per process) "
                f"and {len(images)} (the training images)"
            )
        self.device, self.rank, self.world = torch.device(device), rank, world
        if self.device.type != "cpu" and isinstance(images, ImageSet):
            fits = images.nbytes <= RESIDENT * free_memory(self.device)
            images = images.on(self.device) if fits else images
        self.images, self.augment, self.seed = images, augment, seed
        starts = list(range(0, len(images), batch_size))
        # BatchNorm cannot train on one image: if too few images remain, they join the previous batch.
        if len(images) - starts[-1] < min(2 * world, batch_size):
            starts.pop()
        self._bounds = [*starts, len(images)]

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def smallest_share(self, number: int) -> int:
        """Return how many images of a batch the process with the fewest gets: all must split alike."""
        low, high = self._bounds[number : number + 2]
        return (high - low) // self.world

    def epoch(self, epoch: int, attempt: int = 0, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of one epoch from `start` on; `attempt` counts restarts after a rollback."""
        order = torch.randperm(len(self.images), generator=_generator(self.seed, attempt, epoch, _ORDER))
        images, first = self.images, self._bounds[start]
        shares = [
            [low + (high - low) * rank // self.world for rank in (self.rank, self.rank + 1)]
            for low, high in pairwise(self._bounds[start:])
        ]
        if not isinstance(images, ImageSet):
            for begin, end in shares:
                x, y = images.take(order[begin:end])
                x = x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x
                yield Batch(self._move(x), self._move(y), self._move(order[begin:end]), None)
            return
        order = order.to(images.labels.device)
        # Drawn for whole batches, then sliced, so that the number of processes changes nothing.
        transforms = Transform.joined([
            self.augment.draw(
                self._bounds[number + 1] - self._bounds[number],
                images.images.shape[1:3],
                _generator(self.seed, attempt, epoch, _AUGMENT, number),
            )
            for number in range(start, len(self))
        ]).to(self.device)  # fmt: skip
        for begin, end in shares:
            index, transform = order[begin:end], transforms[begin - first : end - first]
            moved = (images.gather(index), images.labels[index], index)
            pixels, y, index = (self._move(tensor) for tensor in moved)
            x = transform(pixels).float().div_(255).contiguous(memory_format=torch.channels_last)
            yield Batch(x, y, index, transform)

    def _move(self, tensor: Tensor) -> Tensor:
        if self.device.type == "cuda" and tensor.device.type == "cpu":
            return tensor.pin_memory().to(self.device, non_blocking=True)  # the host does not wait
        return tensor.to(self.device)


def _generator(*numbers: int) -> torch.Generator:
    return torch.Generator().manual_seed(mix(*numbers))
