"""Which images a run trains on, watches while it trains, and is tested on."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from sora._seeds import mix
from sora.data.dataset import Dataset, ImageSet, check_labels
from sora.errors import UserError, short

SPLIT_SEED = 0x50A  # a constant: every method and every run must see the same images
_MOST_WATCHED = 1000


@dataclass(frozen=True)
class Splits:
    """The images of one run. No image is in two of `train`, `holdout` and `test`."""

    train: ImageSet
    holdout: ImageSet  # not trained on; empty if nothing is held out
    test: ImageSet

    @cached_property
    def watched(self) -> ImageSet:
        """The images for monitors and evaluations during training.

        Without held-out images these are a tenth of the training images, at most 1,000.
        """
        if len(self.holdout) or not len(self.train):
            return self.holdout
        return self.sample(max(1, default_holdout(len(self.train))))

    def sample(self, count: int) -> ImageSet:
        """Take `count` training images in the proportions of their classes, at test size: always the same."""
        chosen = self.train.subset(choose(self.train.labels, count))
        return chosen.center(*self.test.images.shape[1:3]) if isinstance(self.test, ImageSet) else chosen

    @property
    def watched_name(self) -> Literal["holdout", "training"]:
        """What the watched images are, to label the numbers measured on them."""
        return "holdout" if len(self.holdout) else "training"


def split(
    dataset: Dataset,
    *,
    holdout: int | None = None,
    limit_train: int | None = None,
    limit_test: int | None = None,
) -> Splits:
    """Split a data set into training, held-out and test images with the proportions of its classes.

    Args:
        dataset: The whole data set.
        holdout: How many images to hold out. They come from the source's own validation split if it
            has one (None takes all of it), otherwise from the training images (None takes 10 %, at
            most 1,000). 0 holds nothing out; a validation split is then unused, never trained on.
        limit_train: Train on this many of the remaining images. A default number of held-out images
            shrinks in the same proportion, to no less than one per class.
        limit_test: Test on this many images.
    """
    if not isinstance(dataset, Dataset):
        raise UserError(f"dataset is {short(dataset)}; expected a sora.data.Dataset")
    train, val = dataset.train, dataset.val
    if val is None:
        count = default_holdout(len(train)) if holdout is None else holdout
        held_out, train = divide(train, _checked(count, train, f"--holdout: {dataset.name}'s training set"))
    else:
        held_out = _limit(val, holdout, f"--holdout: {dataset.name}'s validation set")
    if limit_train is not None and holdout is None and 0 < limit_train < len(train):
        fewer = max(dataset.num_classes, round(len(held_out) * limit_train / len(train)))
        held_out = _limit(held_out, min(fewer, len(held_out)), "--holdout")
    return Splits(
        train=_limit(train, limit_train, f"--limit-train: {dataset.name}'s training set"),
        holdout=held_out.center(*dataset.image_size),
        test=_limit(dataset.test, limit_test, f"--limit-test: {dataset.name}'s test set"),
    )


def divide(images: ImageSet, count: int) -> tuple[ImageSet, ImageSet]:
    """Return `count` images with the proportions of their classes, and the others."""
    chosen = choose(images.labels, count)
    others = torch.ones(len(images), dtype=torch.bool).index_fill_(0, chosen, False).nonzero()[:, 0]
    return images.subset(chosen), images.subset(others)


def choose(labels: Tensor, count: int) -> Tensor:
    """Return `count` positions, sorted, with the proportions of the classes: always the same."""
    return stratified(labels, count, mix(SPLIT_SEED, count))


def stratified(labels: Tensor, count: int, seed: int) -> Tensor:
    """Draw `count` positions, sorted, so that every class keeps its share to within one image."""
    check_labels(labels)
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    classes, sizes = labels[by_class], labels.bincount()
    # An image's place within its class, as a fraction: taking the smallest takes evenly from all classes.
    place = torch.arange(len(labels)) - (sizes.cumsum(0) - sizes)[classes]
    fraction = (place + 0.5) / sizes[classes]
    # Many small classes that round up or down together would push a large class off its share. So each class
    # gets at least ceil(share) - 1 and at most floor(share) + 1 images.
    share, total = sizes * count, max(1, len(labels))
    fraction[place < ((share - 1) // total)[classes]] = -math.inf
    fraction[place > (share // total)[classes]] = math.inf
    return by_class[fraction.argsort(stable=True)[:count]].sort().values


def default_holdout(images: int) -> int:
    """Return how many of these training images are held out by default: a tenth, at most 1,000."""
    return min(_MOST_WATCHED, images // 10)


def _limit(images: ImageSet, count: int | None, what: str) -> ImageSet:
    return images if count is None else images.subset(choose(images.labels, _checked(count, images, what)))


def _checked(count: int, images: ImageSet, what: str) -> int:
    if not isinstance(count, int) or isinstance(count, bool):
        raise UserError(f"{what}: {short(count)} images were requested; expected an integer")
    if not 0 <= count <= len(images):
        raise UserError(f"{what} has {len(images)} images, {count} were requested")
    return count
