"""A data set: uint8 images and labels, selected from by views that never copy them."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from sora._files import CLASSES
from sora.errors import UserError

SPLITS = ("train", "val", "test")
_HASH_BLOCK = 1 << 24  # bytes of images that are gathered and hashed together


@dataclass(frozen=True, repr=False)
class ImageSet:
    """Images and labels; `rows` selects from a base array that may be memory-mapped and shared."""

    images: Tensor
    """uint8 (N, H, W, C): a gathered batch is then channels-last without a copy."""
    labels: Tensor
    """int64, one per image of this view."""
    rows: Tensor | None = None
    """Positions in `images`; None selects all of them."""
    images_hash: str | None = None
    """Hash of the whole base array, if it was recorded when the array was packed."""

    def __post_init__(self) -> None:
        for what, tensor in (("images", self.images), ("labels", self.labels)):
            if not isinstance(tensor, Tensor):
                raise UserError(f"{what} are {type(tensor).__name__}; expected a torch.Tensor")
        if self.images.dim() != 4 or self.images.dtype != torch.uint8:
            shape = tuple(self.images.shape)
            raise UserError(f"images are {self.images.dtype} {shape}; expected uint8 (N, H, W, C)")
        count = len(self.images) if self.rows is None else len(self.rows)
        if self.labels.dtype != torch.int64 or self.labels.shape != (count,):
            shape = tuple(self.labels.shape)
            raise UserError(f"labels are {self.labels.dtype} {shape}; expected int64 ({count},)")

    def __repr__(self) -> str:
        return f"ImageSet({len(self)} images of {_shape(self.images)})"

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, positions: Tensor) -> "ImageSet":
        """Return the view of these positions of this view."""
        rows = positions if self.rows is None else self.rows[positions]
        return replace(self, labels=self.labels[positions], rows=rows)

    def center(self, height: int, width: int) -> "ImageSet":
        """Return the view of the central part of every image."""
        top, left = (self.images.shape[1] - height) // 2, (self.images.shape[2] - width) // 2
        if min(top, left) < 0:
            raise UserError(f"images of {_shape(self.images)} have no part of {height}x{width} pixels")
        return replace(self, images=self.images[:, top : top + height, left : left + width])

    def gather(self, positions: Tensor) -> Tensor:
        """Return these images as uint8 (B, C, H, W) with channels-last strides."""
        rows = positions if self.rows is None else self.rows[positions]
        return self.images.index_select(0, rows).permute(0, 3, 1, 2)

    def on(self, device: torch.device) -> "ImageSet":
        """Return a copy of the selected images on a device."""
        images = self.images if self.rows is None else self.images.index_select(0, self.rows)
        return ImageSet(images.to(device), self.labels.to(device))

    @property
    def nbytes(self) -> int:
        """Bytes of the selected images."""
        return len(self) * self.images[0].numel() if len(self) else 0

    def batches(self, batch_size: int, device: torch.device | str = "cpu") -> Iterator[tuple[Tensor, Tensor]]:
        """Yield all images in order as (x in [0, 1], y), for evaluation."""
        for start in range(0, len(self), batch_size):
            positions = torch.arange(start, min(start + batch_size, len(self)))
            x = self.gather(positions).to(device).float().div_(255)
            yield x, self.labels[positions].to(device)

    @cached_property
    def fingerprint(self) -> str:
        """A short hash of the images and labels of this view.

        If the hash of the base array is known, that hash and the selection identify the images without
        reading them. Otherwise all of them are read once.
        """
        result = hashlib.blake2b(digest_size=8)
        shape = (len(self), *self.images.shape[1:])
        if self.images_hash is not None:
            result.update(repr((self.images_hash, shape, self.images.storage_offset())).encode())
            result.update(_bytes(torch.arange(len(self)) if self.rows is None else self.rows))
        else:
            result.update(repr(shape).encode())
            step = max(1, _HASH_BLOCK // max(1, self.images[0].numel() if len(self) else 1))
            for start in range(0, len(self), step):
                positions = torch.arange(start, min(start + step, len(self)))
                result.update(_bytes(self.gather(positions).permute(0, 2, 3, 1)))
        result.update(_bytes(self.labels))
        return result.hexdigest()


def _shape(images: Tensor) -> str:
    return "x".join(map(str, images.shape[1:]))


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().cpu().numpy().tobytes()


def check_labels(labels: Tensor) -> int:
    """Return the highest label, -1 if there is none; raise for labels that cannot be classes."""
    if not isinstance(labels, Tensor) or labels.dim() != 1 or labels.dtype != torch.int64:
        raise UserError("labels are not an int64 tensor of shape (N,)")
    low, high = (int(labels.min()), int(labels.max())) if len(labels) else (0, -1)
    if low < 0:
        raise UserError(f"labels contain {low}; classes are numbered from 0")
    if high >= CLASSES.value:
        raise CLASSES.refusal(f"the label {high}")
    return high


def check_same_size(sets: Mapping[str, ImageSet]) -> None:
    """Raise if the images of two splits have different sizes."""
    shapes = {split: _shape(images.images) for split, images in sets.items()}
    if len(set(shapes.values())) > 1:
        found = ", ".join(f"{split} {shape}" for split, shape in shapes.items())
        raise UserError(f"the images of the splits have different sizes: {found}; resize them to one size")


@dataclass(frozen=True, repr=False)
class Dataset:
    """A named data set; `val` is the source's own validation split, if it has one."""

    name: str
    train: ImageSet
    test: ImageSet
    val: ImageSet | None
    classes: tuple[str, ...]
    folder: Path | None = None
    """The folder it is packed in, if any."""

    def __post_init__(self) -> None:
        for name, images in self.splits.items():
            if not isinstance(images, ImageSet):
                raise UserError(f"{name} is {type(images).__name__}; expected a sora.data.ImageSet")
            highest = check_labels(images.labels)
            if highest >= len(self.classes):
                raise UserError(f"{name} has the label {highest}, but there are {len(self.classes)} classes")
            if images.images.shape[3] != self.in_channels:
                shapes = f"{_shape(images.images)}, test {_shape(self.test.images)}"
                raise UserError(f"{name} has images of {shapes}")

    def __repr__(self) -> str:
        sizes = ", ".join(f"{split} {len(images)}" for split, images in self.splits.items())
        return f"Dataset({self.name}: {sizes}; {_shape(self.test.images)}, {self.num_classes} classes)"

    @property
    def splits(self) -> dict[str, ImageSet]:
        """The splits it has, by name."""
        sets = {"train": self.train, "val": self.val, "test": self.test}
        return {split: images for split, images in sets.items() if images is not None}

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    @property
    def in_channels(self) -> int:
        """1 for grey images, 3 for colour."""
        return self.test.images.shape[3]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input of the model."""
        return self.in_channels, *self.image_size

    @property
    def stored_size(self) -> tuple[int, int]:
        """(H, W) of the training images."""
        return self.train.images.shape[1], self.train.images.shape[2]

    @property
    def expected_classes(self) -> int | None:
        """The number of classes that a model must have, if it is known."""
        return self.num_classes

    @property
    def image_size(self) -> tuple[int, int]:
        """(H, W) of the images the model is tested on; training images may be larger (ImageNet-100)."""
        return self.test.images.shape[1], self.test.images.shape[2]

    @cached_property
    def fingerprint(self) -> str:
        """A short hash of the images and labels of all splits: 16 hexadecimal digits."""
        text = " ".join(f"{split} {images.fingerprint}" for split, images in self.splits.items())
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
