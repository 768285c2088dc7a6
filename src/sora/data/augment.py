"""Augmentation of a whole batch at once, with a record of what was done to each image."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sora.errors import UserError, short, unknown

_FORMS = ("crop:PAD", "resized-crop:SIZE", "flip", "rotate:DEGREES")
_USAGE = {form.partition(":")[0]: form for form in _FORMS}
_AREA, _RATIO, _TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10  # the usual random resized crop


@dataclass(frozen=True)
class Transform:
    """The transformation of each of B images: a crop, plain or resized, then a flip, then a rotation."""

    pad: int = 0  # black border around the image before the crop
    top: Tensor | None = None
    left: Tensor | None = None  # corner of the crop window in the padded image, (B,)
    box: Tensor | None = None  # window of a resized crop: top, left, height, width, (B, 4)
    size: int = 0  # side of a resized crop's result
    flip: Tensor | None = None  # whether mirrored left to right, bool (B,)
    angle: Tensor | None = None  # degrees counter-clockwise, (B,)

    def __call__(self, images: Tensor) -> Tensor:
        """Apply to (B, C, H, W), uint8 or float; pixels from outside an image are black."""
        if self.box is not None:
            return self._turn(_resized_crop(images, self.box, self.size, self.size))
        return self._turn(self._crop(F.pad(images, [self.pad] * 4) if self.pad else images))

    @classmethod
    def joined(cls, parts: Sequence["Transform"]) -> "Transform":
        """Return one record of the images of several batches."""
        drawn = [name for name, value in vars(parts[0]).items() if isinstance(value, Tensor)]
        whole: dict[str, Any] = {name: torch.cat([vars(part)[name] for part in parts]) for name in drawn}
        return replace(parts[0], **whole)

    def canvas_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the size of the padded image of which the crop is a window."""
        return height + 2 * self.pad, width + 2 * self.pad

    def from_canvas(self, canvas: Tensor) -> Tensor:
        """Map a perturbation of the padded images, float (B, C, H+2p, W+2p), to the augmented images."""
        self._check_invertible()
        return self._turn(self._crop(canvas))

    def to_canvas(self, canvas: Tensor, patch: Tensor) -> Tensor:
        """Map the patch back from the augmented images and write it into the canvas's crop window."""
        self._check_invertible()
        if self.angle is not None:
            patch = _rotate(patch, -self.angle)
        if self.flip is not None:
            patch = _mirror(patch, self.flip)
        patch = patch.to(canvas.dtype)
        if self.top is None or self.left is None:
            return patch
        return _paste(canvas, patch, self.top, self.left)

    def to(self, device: torch.device | str) -> "Transform":
        """Return the same record on another device."""
        return self._map(lambda value: value.to(device))

    def __getitem__(self, part: slice) -> "Transform":
        """Return the record of some of the images."""
        return self._map(lambda value: value[part])

    def _crop(self, canvas: Tensor) -> Tensor:
        if self.top is None or self.left is None:
            return canvas
        height, width = canvas.shape[2] - 2 * self.pad, canvas.shape[3] - 2 * self.pad
        return _crop(canvas, self.top, self.left, height, width)

    def _turn(self, images: Tensor) -> Tensor:
        if self.flip is not None:
            images = _mirror(images, self.flip)
        return images if self.angle is None else _rotate(images, self.angle)

    def _check_invertible(self) -> None:
        if self.box is not None:
            reason = "so a per-image memory (ATAS) cannot be mapped through it"
            raise UserError(f"a resized crop cannot be inverted, {reason}")

    def _map(self, change: Callable[[Tensor], Tensor]) -> "Transform":
        changed: dict[str, Any] = {k: change(v) for k, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **changed)


@dataclass(frozen=True)
class Augment:
    """Which random transformations are applied to training images."""

    pad: int = 0
    size: int = 0
    flip: bool = False
    degrees: float = 0.0

    @classmethod
    def parse(cls, operations: Sequence[str]) -> "Augment":
        """Read names such as `("crop:4", "flip")`; the order is always crop, flip, rotate."""
        amounts: dict[str, float] = {}
        if isinstance(operations, str) or not all(isinstance(operation, str) for operation in operations):
            expected = "expected a list such as ['crop:4', 'flip']"
            raise UserError(f"augmentation is {short(operations)}; {expected}")
        for operation in operations:
            name, _, value = operation.partition(":")
            if name not in _USAGE:
                raise unknown("augmentation", operation, _FORMS)
            amounts[name] = _amount(operation, _USAGE[name], value)
        if len(amounts) != len(operations) or {"crop", "resized-crop"} <= amounts.keys():
            raise UserError(f"augmentation {', '.join(operations)}: at most one crop, one flip, one rotate")
        pad, size = int(amounts.get("crop", 0)), int(amounts.get("resized-crop", 0))
        return cls(pad, size, "flip" in amounts, amounts.get("rotate", 0.0))

    def draw(self, n: int, size: Sequence[int], generator: torch.Generator) -> "Transform":
        """Draw random choices for n images of (H, W), from the generator alone, on the CPU."""
        drawn: dict[str, Any] = {}
        if self.size:
            drawn["box"] = _draw_boxes(n, size[0], size[1], generator)
        if self.pad:
            drawn["top"], drawn["left"] = torch.randint(2 * self.pad + 1, (2, n), generator=generator)
        if self.flip:
            drawn["flip"] = torch.rand(n, generator=generator) < 0.5
        if self.degrees:
            drawn["angle"] = (2 * torch.rand(n, generator=generator) - 1) * self.degrees
        return Transform(pad=self.pad, size=self.size, **drawn)


def _amount(operation: str, usage: str, value: str) -> float:
    if ":" not in usage and ":" not in operation:
        return 1.0
    integer = not usage.startswith("rotate")
    try:
        amount = float(int(value) if integer else value)
    except ValueError:
        amount = math.nan
    unit = usage.partition(":")[2]
    if not unit or not 0 < amount <= (4096 if integer else 180):
        allowed = "an integer from 1 to 4096" if integer else "above 0 and at most 180"
        amounts = f" with {unit} {allowed}" if unit else ""
        raise UserError(f"augmentation {short(operation)} must be written {usage}{amounts}")
    return amount


def _draw_boxes(n: int, height: int, width: int, generator: torch.Generator) -> Tensor:
    """Draw windows of random area and ratio: the first of ten that fits, else the largest allowed."""
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


def _crop(images: Tensor, top: Tensor, left: Tensor, height: int, width: int) -> Tensor:
    """Take the window (height, width) of each image at its own corner."""
    # A view of all windows, then one gather: contiguous image rows are copied, not single pixels.
    windows = images.permute(0, 2, 3, 1).unfold(1, height, 1).unfold(2, width, 1).permute(0, 1, 2, 4, 5, 3)
    return windows[torch.arange(len(images), device=images.device), top, left].permute(0, 3, 1, 2)


def _paste(images: Tensor, patch: Tensor, top: Tensor, left: Tensor) -> Tensor:
    """Copy the images and replace the window of each, at its own corner, by the patch."""
    height, width = patch.shape[2:]
    batch = torch.arange(len(images), device=images.device)[:, None, None]
    rows = top[:, None, None] + torch.arange(height, device=images.device)[:, None]
    columns = left[:, None, None] + torch.arange(width, device=images.device)
    pasted = images.clone()
    pasted[batch, :, rows, columns] = patch.permute(0, 2, 3, 1)
    return pasted


def _mirror(images: Tensor, chosen: Tensor) -> Tensor:
    """Mirror the chosen images left to right."""
    # Both versions, then whole images picked: copying bytes is faster than choosing between elements.
    both = torch.cat((images.permute(0, 2, 3, 1), images.flip(3).permute(0, 2, 3, 1)))
    picked = torch.arange(len(images), device=images.device) + len(images) * chosen
    return both.index_select(0, picked).permute(0, 3, 1, 2)


def _rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Rotate each image counter-clockwise about its centre: nearest neighbour, black outside."""
    count, channels, height, width = images.shape
    angle = degrees.deg2rad()[:, None, None]
    # Where each pixel centre comes from, relative to the image's centre.
    right = torch.arange(width, device=degrees.device) + (0.5 - width / 2)
    down = (torch.arange(height, device=degrees.device) + (0.5 - height / 2))[:, None]
    x, y = right * angle.cos() - down * angle.sin(), right * angle.sin() + down * angle.cos()
    # With a black border of one pixel, every pixel from outside is read from the border.
    column = (x + (width / 2 + 1)).clamp_(0, width + 1).long()
    row = (y + (height / 2 + 1)).clamp_(0, height + 1).long()
    start = torch.arange(count, device=images.device)[:, None, None] * ((height + 2) * (width + 2))
    source = start + row * (width + 2) + column
    pixels = F.pad(images, [1] * 4).permute(0, 2, 3, 1).reshape(-1, channels)
    return pixels.index_select(0, source.flatten()).view(count, height, width, channels).permute(0, 3, 1, 2)


def resized(images: Tensor, side: int) -> Tensor:
    """Return float images (B, C, H, W) with H = `side` and W in proportion, bilinear and antialiased."""
    height, width = images.shape[2:]
    if side == height:
        return images
    across = max(1, round(width * side / height))
    box = torch.tensor([[0, 0, height, width]], device=images.device)
    return _resized_crop(images, box, side, across).contiguous(memory_format=torch.channels_last)


def _resized_crop(images: Tensor, box: Tensor, height: int, width: int) -> Tensor:
    """Resize each image's box (top, left, height, width) to (height, width), bilinear and antialiased.

    A separable triangle filter as two matrix products: exact also when an image is made smaller.
    """
    down = _triangle_weights(box[:, 0], box[:, 2], height, images.shape[2])
    across = _triangle_weights(box[:, 1], box[:, 3], width, images.shape[3])
    result = down[:, None] @ images.to(down.dtype) @ across[:, None].transpose(2, 3)
    return result if images.is_floating_point() else result.round().clamp(0, 255).to(images.dtype)


def _triangle_weights(start: Tensor, length: Tensor, size: int, source: int) -> Tensor:
    """Return (B, size, source): row i contains the weight of each source pixel in result pixel i."""
    scale = (length / size)[:, None, None]
    center = start[:, None, None] + (torch.arange(size, device=start.device)[:, None] + 0.5) * scale
    pixel = torch.arange(source, device=start.device) + 0.5
    weights = (1 - (pixel - center).abs() / scale.clamp(min=1)).clamp(min=0)
    # The crop comes first: pixels outside the box have no weight.
    inside = (pixel > start[:, None, None]) & (pixel < (start + length)[:, None, None])
    weights = weights * inside
    return weights / weights.sum(2, keepdim=True)
