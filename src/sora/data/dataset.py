"""What a data set is: uint8 images and labels, looked at through views that never copy them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from sora._seeds import mix
from sora.errors import UserError

SPLIT_SEED = 0x50A  # a constant: every method and every run must see the same images


@dataclass(frozen=True)
class ImageSet:
    """Images and labels; `rows` selects from a base array that may be memory-mapped and shared."""

    images: Tensor
    """uint8 (N, H, W, C): a gathered batch is then channels-last without a copy."""
    labels: Tensor
    """int64, one per image of this view."""
    rows: Tensor | None = None
    """Positions in `images`; None stands for all of them."""

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, positions: Tensor) -> ImageSet:
        """The view of these positions of this view."""
        rows = positions if self.rows is None else self.rows[positions]
        return replace(self, labels=self.labels[positions], rows=rows)

    def center(self, height: int, width: int) -> ImageSet:
        """The view of every image's central part."""
        top, left = (self.images.shape[1] - height) // 2, (self.images.shape[2] - width) // 2
        return replace(self, images=self.images[:, top : top + height, left : left + width])

    def gather(self, positions: Tensor) -> Tensor:
        """These images as uint8 (B, C, H, W) with channels-last strides."""
        rows = positions if self.rows is None else self.rows[positions]
        return self.images.index_select(0, rows).permute(0, 3, 1, 2)

    def batches(self, batch_size: int, device: torch.device | str = "cpu") -> Iterator[tuple[Tensor, Tensor]]:
        """All images in order as (x in [0, 1], y), for evaluation."""
        for start in range(0, len(self), batch_size):
            positions = torch.arange(start, min(start + batch_size, len(self)))
            x = self.gather(positions).to(device).float().div_(255)
            yield x, self.labels[positions].to(device)


@dataclass(frozen=True)
class Dataset:
    """A named data set; `val` is the source's own validation split where it has one."""

    name: str
    train: ImageSet
    test: ImageSet
    val: ImageSet | None
    classes: tuple[str, ...]
    folder: Path | None = None
    """Where it is packed, if it is."""

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.classes)

    @property
    def in_channels(self) -> int:
        """1 for grey images, 3 for colour."""
        return self.test.images.shape[3]

    @property
    def image_size(self) -> tuple[int, int]:
        """(H, W) of what the model is tested on; training images may be larger (ImageNet-100)."""
        return self.test.images.shape[1], self.test.images.shape[2]


@dataclass(frozen=True)
class Splits:
    """What one run trains on, looks at while it trains, and is judged by. No image is in two of them."""

    train: ImageSet
    holdout: ImageSet
    test: ImageSet


def split(
    dataset: Dataset,
    *,
    holdout: int | None = None,
    limit_train: int | None = None,
    limit_test: int | None = None,
) -> Splits:
    """Cut a data set into training, held-out and test images, with the proportions of its classes.

    Args:
        dataset: the whole set.
        holdout: how many images to hold out. They come from the source's own validation split if it
            has one (None takes all of it), else from the training images (None takes 10 %, at most
            1,000). 0 holds nothing out; a validation split is then unused, never trained on.
        limit_train: train on this many of the images that are left.
        limit_test: test on this many images.
    """
    train, val = dataset.train, dataset.val
    if val is None:
        count = min(1000, len(train) // 10) if holdout is None else holdout
        chosen = _choose(train.labels, count, f"--holdout: {dataset.name}'s training set")
        kept = torch.ones(len(train), dtype=torch.bool).index_fill_(0, chosen, False)
        held, train = train.subset(chosen), train.subset(kept.nonzero()[:, 0])
    else:
        held = _limit(val, holdout, f"--holdout: {dataset.name}'s validation set")
    return Splits(
        train=_limit(train, limit_train, f"--limit-train: {dataset.name}'s training set"),
        holdout=held.center(*dataset.image_size),
        test=_limit(dataset.test, limit_test, f"--limit-test: {dataset.name}'s test set"),
    )


def stratified(labels: Tensor, count: int, seed: int) -> Tensor:
    """`count` positions, sorted, drawn so that every class keeps its share to within one image."""
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    sizes = labels.bincount()
    # An image's place within its class, as a fraction: taking the smallest takes evenly from all classes.
    place = torch.arange(len(labels)) - (sizes.cumsum(0) - sizes)[labels[by_class]]
    fraction = (place + 0.5) / sizes[labels[by_class]]
    return by_class[fraction.argsort(stable=True)[:count]].sort().values


def _limit(images: ImageSet, count: int | None, what: str) -> ImageSet:
    return images if count is None else images.subset(_choose(images.labels, count, what))


def _choose(labels: Tensor, count: int, what: str) -> Tensor:
    if not 0 <= count <= len(labels):
        raise UserError(f"{what} has {len(labels)} images, {count} were asked for")
    return stratified(labels, count, mix(SPLIT_SEED, count))
