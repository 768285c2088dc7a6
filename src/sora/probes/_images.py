"""Images as whole numbers that JSON can store, differences that can be seen, and rows of both for figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sora.figures import Panel, Picture

ROWS = ("clean", "attacked", "difference")
LARGEST = 64  # pixels per side of an image as it is stored and drawn
LONGEST = 12  # characters of a class's name that fit above an image
Pixels = list[list[list[int]]]  # (H, W, C), from 0 to 255


def pixels(image: Tensor) -> Pixels:
    """An image (C, H, W) of [0, 1] as whole numbers, made smaller if it is large."""
    side = max(image.shape[-2:])
    if side > LARGEST:
        image = F.interpolate(image[None], scale_factor=LARGEST / side, mode="area")[0]
    levels: Pixels = (image * 255).round().clamp(0, 255).int().permute(1, 2, 0).tolist()
    return levels


def amplified(pairs: Sequence[tuple[Pixels, Pixels]]) -> tuple[list[Pixels], float]:
    """The difference of each pair around grey, and the factor by which all are amplified."""
    changes = [torch.tensor(after) - torch.tensor(before) for before, after in pairs]
    largest = max([int(change.abs().max()) for change in changes] + [1])
    factor = 127.5 / largest
    levels = [(127.5 + factor * change).round().clamp(0, 255).int().tolist() for change in changes]
    return levels, factor


def image_rows(
    name: str, samples: Sequence[Mapping[str, Any]], classes: Sequence[str] = ()
) -> list[list[Panel]]:
    """The rows of panels that show clean images, attacked images, and their differences.

    Without names of the classes, which results of older versions lack, their numbers are shown.
    """

    def named(number: int) -> str:
        return classes[number][:LONGEST] if number < len(classes) else f"class {number}"

    differences, factor = amplified([(sample["clean"], sample["attacked"]) for sample in samples])
    texts = [f"{name}\n{row}" for row in (*ROWS[:2], f"{ROWS[2]} x {factor:.0f}")]
    rows: list[list[Panel]] = [[], [], []]
    for sample, difference in zip(samples, differences, strict=True):
        images = sample["clean"], sample["attacked"], difference
        titles = named(sample["label"]), f"→ {named(sample['attacked_class'])}", ""
        for row, image, title, text in zip(rows, images, titles, texts, strict=True):
            row.append(Panel([Picture(image)], title, name=text if not row else ""))
    return rows
