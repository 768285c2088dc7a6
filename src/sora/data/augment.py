"""Augmentation of a whole batch at once, with a record of what was done to each image."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sora.data import _geometry as geometry
from sora.errors import UserError, short, unknown

_FORMS = ("crop:PAD", "resized-crop:SIZE", "flip", "rotate:DEGREES")
_USAGE = {form.partition(":")[0]: form for form in _FORMS}
_AREA, _RATIO, _TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10  # the usual random resized crop


@dataclass(frozen=True)
class Transform:
    """The transformation of each of B images: a crop, plain or resized, then a flip, then a rotation."""

    pad: int = 0
    """Black border around the image before the crop."""
    top: Tensor | None = None
    left: Tensor | None = None
    """Corner of the crop window in the padded image, (B,)."""
    box: Tensor | None = None
    """Window of a resized crop: top, left, height, width, (B, 4)."""
    size: int = 0
    """Side of a resized crop's result."""
    flip: Tensor | None = None
    """Whether mirrored left to right, bool (B,)."""
    angle: Tensor | None = None
    """Degrees counter-clockwise, (B,)."""

    def __call__(self, images: Tensor) -> Tensor:
        """Apply to (B, C, H, W), uint8 or float; pixels from outside an image are black."""
        if self.box is not None:
            images = geometry.resized_crop(images, self.box, self.size)
        elif self.pad:
            images = self._crop(F.pad(images, [self.pad] * 4))
        if self.flip is not None:
            images = geometry.mirror(images, self.flip)
        if self.angle is not None:
            images = geometry.rotate_nearest(images, self.angle)
        return images

    def canvas_size(self, height: int, width: int) -> tuple[int, int]:
        """Size of the padded image of which the crop is a window."""
        return height + 2 * self.pad, width + 2 * self.pad

    def from_canvas(self, canvas: Tensor) -> Tensor:
        """Map a perturbation of the padded images, float (B, C, H+2p, W+2p), to the augmented images."""
        self._check_invertible()
        patch = self._crop(canvas) if self.pad else canvas
        if self.flip is not None:
            patch = geometry.mirror(patch, self.flip)
        return patch if self.angle is None else geometry.rotate_nearest(patch, self.angle)

    def to_canvas(self, canvas: Tensor, patch: Tensor) -> Tensor:
        """The canvas with its crop window overwritten by the patch, mapped back from the augmented images."""
        self._check_invertible()
        if self.angle is not None:
            patch = geometry.rotate_nearest(patch, -self.angle)
        if self.flip is not None:
            patch = geometry.mirror(patch, self.flip)
        patch = patch.to(canvas.dtype)
        if self.top is None or self.left is None:
            return patch
        return geometry.paste(canvas, patch, self.top, self.left)

    def to(self, device: torch.device | str) -> Transform:
        """The same record on another device."""
        return self._map(lambda value: value.to(device, non_blocking=True))

    def __getitem__(self, part: slice) -> Transform:
        """The record of some of the images."""
        return self._map(lambda value: value[part])

    def _crop(self, canvas: Tensor) -> Tensor:
        assert self.top is not None
        assert self.left is not None
        height, width = canvas.shape[2] - 2 * self.pad, canvas.shape[3] - 2 * self.pad
        return geometry.crop(canvas, self.top, self.left, height, width)

    def _check_invertible(self) -> None:
        if self.box is not None:
            raise UserError(
                "a resized crop cannot be inverted, so a per-image memory (ATAS) cannot be mapped through it"
            )

    def _map(self, change: Callable[[Tensor], Tensor]) -> Transform:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        changed: dict[str, Any] = {k: change(v) for k, v in values.items() if isinstance(v, Tensor)}
        return replace(self, **changed)


@dataclass(frozen=True)
class Augment:
    """Which random transformations are applied to training images."""

    pad: int = 0
    size: int = 0
    flip: bool = False
    degrees: float = 0.0

    @classmethod
    def parse(cls, operations: Sequence[str]) -> Augment:
        """From names such as `("crop:4", "flip")`; always applied in the order crop, flip, rotate."""
        amounts: dict[str, float] = {}
        if isinstance(operations, str) or not all(isinstance(operation, str) for operation in operations):
            raise UserError(
                f"augmentation is {short(operations)}; expected a list such as ['crop:4', 'flip']"
            )
        for operation in operations:
            name, _, value = operation.partition(":")
            if name not in _USAGE:
                raise unknown("augmentation", operation, _FORMS)
            amounts[name] = _amount(operation, _USAGE[name], value)
        if len(amounts) != len(operations) or {"crop", "resized-crop"} <= amounts.keys():
            raise UserError(f"augmentation {', '.join(operations)}: at most one crop, one flip, one rotate")
        return cls(
            pad=int(amounts.get("crop", 0)),
            size=int(amounts.get("resized-crop", 0)),
            flip="flip" in amounts,
            degrees=amounts.get("rotate", 0.0),
        )

    def draw(self, n: int, size: Sequence[int], generator: torch.Generator) -> Transform:
        """Random choices for n images of (H, W), from the generator alone, on the CPU."""
        transform = Transform(pad=self.pad, size=self.size)
        if self.size:
            transform = replace(transform, box=_draw_boxes(n, size[0], size[1], generator))
        if self.pad:
            top, left = torch.randint(2 * self.pad + 1, (2, n), generator=generator)
            transform = replace(transform, top=top, left=left)
        if self.flip:
            transform = replace(transform, flip=torch.rand(n, generator=generator) < 0.5)
        if self.degrees:
            angle = (2 * torch.rand(n, generator=generator) - 1) * self.degrees
            transform = replace(transform, angle=angle)
        return transform


def _amount(operation: str, usage: str, value: str) -> float:
    if ":" not in usage and ":" not in operation:
        return 1.0
    whole = not usage.startswith("rotate")
    try:
        amount = float(int(value) if whole else value)
    except ValueError:
        amount = math.nan
    unit = usage.partition(":")[2]
    if not unit or not 0 < amount <= (4096 if whole else 180):
        allowed = "a whole number from 1 to 4096" if whole else "above 0 and at most 180"
        amounts = f" with {unit} {allowed}" if unit else ""
        raise UserError(f"augmentation {short(operation)} must be written {usage}{amounts}")
    return amount


def _draw_boxes(n: int, height: int, width: int, generator: torch.Generator) -> Tensor:
    """Windows of random area and ratio: the first of ten tries that fits, else the largest allowed."""
    area = torch.empty(n, _TRIES).uniform_(*_AREA, generator=generator) * (height * width)
    ratio = torch.empty(n, _TRIES).uniform_(*map(math.log, _RATIO), generator=generator).exp()
    heights, widths = (area / ratio).sqrt().round(), (area * ratio).sqrt().round()
    fits = (heights >= 1) & (heights <= height) & (widths >= 1) & (widths <= width)
    first = fits.int().argmax(1, keepdim=True)
    fitting = fits.any(1)
    h = torch.where(fitting, heights.gather(1, first)[:, 0], min(height, round(width / _RATIO[0])))
    w = torch.where(fitting, widths.gather(1, first)[:, 0], min(width, round(height * _RATIO[1])))
    corner = torch.where(fitting, torch.rand(2, n, generator=generator), 0.5)
    top, left = (corner[0] * (height - h + 1)).floor(), (corner[1] * (width - w + 1)).floor()
    return torch.stack((top, left, h, w), dim=1)
