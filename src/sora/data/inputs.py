"""Data that a program hands over: float inputs of any shape, targets of any kind, streams of batches."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils import data as torch_data

from sora._checks import has_integers
from sora._seeds import mix, seed_torch
from sora.data.dataset import Dataset, ImageSet
from sora.data.loader import Batch
from sora.errors import UserError

STREAM = (
    "the training data is a stream: a resumed run reads it again from the start of the epoch, and is"
    " bit-exact only if order and augmentation follow from torch's seed; nothing is held out from it"
)
SAMPLED = 2000  # examples of a stream that are read before training, to watch a tenth of them


@dataclass(frozen=True, repr=False)
class ExampleSet:
    """Inputs and targets that a function reads by position; like `ImageSet` it is divided without copies."""

    read: Callable[[Tensor], tuple[Tensor, Tensor]]
    labels: Tensor
    """Classes in whose proportions examples are chosen; all 0 if targets are no classes, or not known."""
    hash: str
    rows: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, positions: Tensor) -> ExampleSet:
        """Return the view of these positions of this view."""
        rows = positions if self.rows is None else self.rows[positions]
        return replace(self, labels=self.labels[positions], rows=rows)

    def take(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets."""
        return self.read(positions if self.rows is None else self.rows[positions])

    def center(self, height: int, width: int) -> ExampleSet:
        """Return itself: inputs have one shape."""
        return self

    def batches(self, batch_size: int, device: torch.device | str = "cpu") -> Iterator[tuple[Tensor, Tensor]]:
        """Yield all examples in order."""
        for positions in torch.split(torch.arange(len(self)), batch_size):
            x, y = self.take(positions)
            yield x.to(device), y.to(device)

    @property
    def fingerprint(self) -> str:
        """A short hash of the examples of this view; of a torch `Dataset` only its type and length."""
        rows = b"" if self.rows is None else self.rows.numpy().tobytes()
        return hashlib.blake2b(self.hash.encode() + rows, digest_size=8).hexdigest()


def from_tensors(inputs: Tensor, targets: Tensor, dtype: torch.dtype) -> ExampleSet:
    """Return examples that are in memory."""
    check_examples(inputs, targets)
    inputs = inputs.to(dtype)
    digest = hashlib.blake2b(digest_size=8)
    for tensor in (inputs, targets):
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    classes = targets.dim() == 1 and has_integers(targets) and bool((targets >= 0).all())
    labels = targets.long() if classes else torch.zeros(len(targets), dtype=torch.int64)
    return ExampleSet(lambda at: (inputs[at], targets[at]), labels.cpu(), digest.hexdigest())


def from_items(items: Any, dtype: torch.dtype) -> ExampleSet:
    """Return the examples of a torch `Dataset`, whose items are read when they are needed."""

    def read(at: Tensor) -> tuple[Tensor, Tensor]:
        x, y = as_batch([items[position] for position in at.tolist()], dtype, collate=True)[:2]
        return x, y

    if len(items) == 0:
        raise UserError("the data has no example")
    read(torch.arange(1))  # raises for items of another kind
    return ExampleSet(read, torch.zeros(len(items), dtype=torch.int64), f"{type(items)} {len(items)}")


def from_batches(batches: Iterable[Any], dtype: torch.dtype, most: int | None = None) -> ExampleSet:
    """Return the examples of batches, or the first `most` of them, in memory."""
    found, count = list[tuple[Tensor, ...]](), 0
    for batch in batches:
        found.append(as_batch(batch, dtype)[:2])
        count += len(found[-1][1])
        if most is not None and count >= most:
            break
    if not found:
        raise UserError("the data has no batch")
    try:
        x, y = (torch.cat([batch[part].cpu() for batch in found])[:most] for part in (0, 1))
    except RuntimeError as error:
        raise UserError(f"the batches do not fit together: {error}") from None
    return from_tensors(x, y, dtype)


def as_batch(batch: Any, dtype: torch.dtype, *, collate: bool = False) -> tuple[Tensor, ...]:
    """Return inputs, targets and, if there is a third entry, positions in the training set."""
    try:
        parts = tuple(torch_data.default_collate(batch) if collate else batch)[:3]
        x, y, *index = (part if isinstance(part, Tensor) else torch.as_tensor(part) for part in parts)
    except (TypeError, ValueError, RuntimeError):
        kind = f"{type(batch[0] if collate else batch).__name__}"
        raise UserError(
            f"the data yields {kind}; expected tensors (inputs, targets) or (inputs, targets, index)"
        ) from None
    check_examples(x, y)
    return (x.to(dtype), y, *index)


def check_examples(inputs: Tensor, targets: Tensor) -> None:
    """Raise for inputs that are no floats, and for another number of targets."""
    if not inputs.is_floating_point() or inputs.dim() < 2 or not inputs.numel():
        raise UserError(
            f"inputs are {inputs.dtype} {tuple(inputs.shape)}; expected floats (N, ...), or uint8 images"
            " (N, C, H, W) as tensors"
        )
    if targets.shape[:1] != inputs.shape[:1]:
        raise UserError(f"{len(inputs)} inputs come with targets of shape {tuple(targets.shape)}")


@dataclass(frozen=True, repr=False)
class GivenData(Dataset):
    """Examples of any shape for training and test; with a `stream`, `train` is only a sample of it."""

    train: ExampleSet  # type: ignore[assignment]
    test: ExampleSet  # type: ignore[assignment]
    stream: Iterable[Any] | None = None
    indexed: bool = True  # whether each example's position is known

    def __post_init__(self) -> None:
        if (shape := tuple(self.train.take(torch.arange(1))[0].shape[1:])) != self.shape:
            raise UserError(f"training inputs have shape {shape}, test inputs {self.shape}")

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Of one input."""
        return tuple(self.test.take(torch.arange(1))[0].shape[1:])

    @property
    def in_channels(self) -> int:
        """The first size of an input."""
        return self.shape[0]

    @property
    def image_size(self) -> tuple[int, int]:
        """The last two sizes of an input, 1 where it has fewer."""
        height, width = (1, 1, *self.shape[1:])[-2:]
        return height, width

    stored_size = image_size
    expected_classes = None  # the highest label need not occur


class Stream:
    """Batches of a user's own loader, which is iterated anew in each epoch, with a torch seed of its own."""

    def __init__(self, batches: Any, seed: int, device: torch.device, dtype: torch.dtype) -> None:
        self.batches, self.seed, self.device, self.dtype = batches, seed, device, dtype
        self.count = len(batches)

    def __len__(self) -> int:
        return self.count

    def smallest_share(self, number: int) -> int:
        """Refuse: the sizes of batches are not known before they come."""
        raise UserError("accumulate is for tensors and torch Datasets: a stream makes its own batches")

    def epoch(self, epoch: int, attempt: int = 0, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of one epoch from `start` on; those before are read and left out."""
        seed_torch(mix(self.seed, attempt, epoch))
        found = 0
        for batch in itertools.islice(self.batches, start, self.count):
            x, y, *index = as_batch(batch, self.dtype)
            if x.dim() == 4:
                x = x.contiguous(memory_format=torch.channels_last)
            known = index[0].to(self.device) if index else None
            yield Batch(x.to(self.device), y.to(self.device), known, None)
            found += 1
        if found < self.count - start:
            raise UserError(
                f"the data had {found + start} batches in epoch {epoch + 1}, but its len() is {self.count};"
                " an iterator can be read only once: pass a list or a DataLoader"
            )


def as_floats(images: ImageSet, dtype: torch.dtype) -> ExampleSet:
    """Return images as floats in [0, 1], to be used beside other examples."""
    return from_tensors(images.gather(torch.arange(len(images))).contiguous() / 255, images.labels, dtype)
