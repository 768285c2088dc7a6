"""Image geometry on batches: each image of the batch has its own window or angle."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def crop(images: Tensor, top: Tensor, left: Tensor, height: int, width: int) -> Tensor:
    """The window (height, width) of each image at its own corner."""
    # A view of all windows, then one gather: contiguous image rows are copied, not single pixels.
    windows = images.permute(0, 2, 3, 1).unfold(1, height, 1).unfold(2, width, 1).permute(0, 1, 2, 4, 5, 3)
    return windows[torch.arange(len(images), device=images.device), top, left].permute(0, 3, 1, 2)


def paste(images: Tensor, patch: Tensor, top: Tensor, left: Tensor) -> Tensor:
    """A copy of the images with each window at its own corner replaced by the patch; inverse of `crop`."""
    height, width = patch.shape[2:]
    batch = torch.arange(len(images), device=images.device)[:, None, None]
    rows = top[:, None, None] + torch.arange(height, device=images.device)[:, None]
    columns = left[:, None, None] + torch.arange(width, device=images.device)
    pasted = images.clone()
    pasted[batch, :, rows, columns] = patch.permute(0, 2, 3, 1)
    return pasted


def mirror(images: Tensor, chosen: Tensor) -> Tensor:
    """The chosen images mirrored left to right."""
    # Both versions, then whole images picked: copying bytes is faster than choosing between elements.
    both = torch.cat((images.permute(0, 2, 3, 1), images.flip(3).permute(0, 2, 3, 1)))
    picked = torch.arange(len(images), device=images.device) + len(images) * chosen
    return both.index_select(0, picked).permute(0, 3, 1, 2)


def rotate_nearest(images: Tensor, degrees: Tensor) -> Tensor:
    """Each image rotated counter-clockwise about its centre, nearest neighbour, black outside."""
    count, channels, height, width = images.shape
    x, y = _rotated_grid(degrees, height, width)
    # With a black border of one pixel, every pixel from outside is read from the border.
    column = (x + (width / 2 + 1)).clamp_(0, width + 1).long()
    row = (y + (height / 2 + 1)).clamp_(0, height + 1).long()
    start = torch.arange(count, device=images.device)[:, None, None] * ((height + 2) * (width + 2))
    source = start + row * (width + 2) + column
    pixels = F.pad(images, [1] * 4).permute(0, 2, 3, 1).reshape(-1, channels)
    return pixels.index_select(0, source.flatten()).view(count, height, width, channels).permute(0, 3, 1, 2)


def _rotated_grid(degrees: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """The source position of each pixel centre, relative to the image centre: x and y, (B, H, W)."""
    angle = degrees.deg2rad()[:, None, None]
    x = torch.arange(width, device=degrees.device) + (0.5 - width / 2)
    y = (torch.arange(height, device=degrees.device) + (0.5 - height / 2))[:, None]
    return x * angle.cos() - y * angle.sin(), x * angle.sin() + y * angle.cos()


def resized_crop(images: Tensor, box: Tensor, size: int) -> Tensor:
    """Each image's box (top, left, height, width) resized to (size, size), bilinear and antialiased.

    A separable triangle filter as two matrix products: exact also when an image is made smaller.
    """
    down = _triangle_weights(box[:, 0], box[:, 2], size, images.shape[2])
    across = _triangle_weights(box[:, 1], box[:, 3], size, images.shape[3])
    resized = down[:, None] @ images.to(down.dtype) @ across[:, None].transpose(2, 3)
    return resized if images.is_floating_point() else resized.round().clamp(0, 255).to(images.dtype)


def _triangle_weights(start: Tensor, length: Tensor, size: int, source: int) -> Tensor:
    """Row i of (B, size, source) contains the weight of each source pixel in result pixel i."""
    scale = (length / size)[:, None, None]
    center = start[:, None, None] + (torch.arange(size, device=start.device)[:, None] + 0.5) * scale
    pixel = torch.arange(source, device=start.device) + 0.5
    weights = (1 - (pixel - center).abs() / scale.clamp(min=1)).clamp(min=0)
    # The crop comes first: pixels outside the box have no weight.
    inside = (pixel > start[:, None, None]) & (pixel < (start + length)[:, None, None])
    weights = weights * inside
    return weights / weights.sum(2, keepdim=True)
