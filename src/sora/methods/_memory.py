"""Perturbations that a method stores from one batch, or one epoch, to the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from sora._typed import option
from sora.errors import UserError
from sora.methods._records import Hyper, Inputs


@dataclass(frozen=True)
class MemoryHyper(Hyper):
    """Hyper-parameters of methods that store something per training image."""

    align: bool = option(
        False, "move stored perturbations with the crop and flip of their image, as ATAS does"
    )
    dtype: Literal["float32", "float16"] = option("float32", "number format of stored perturbations")
    storage: Literal["device", "cpu"] = option(
        "device", "where perturbations are stored; with cpu, every step waits for a copy"
    )


class Memory(nn.Module):
    """A tensor like an input for each training image, or for each row of the batch; a buffer.

    Args:
        hyper: Number format, place, and whether to store images on the padded canvas of augmentation.
        by: `image`: found by the image's index; `row`: by its position in the batch, as in Free AT.
        half: What the dtype "float16" means; bfloat16 for numbers that float16 would round to 0.
    """

    values: Tensor | None

    def __init__(
        self,
        hyper: MemoryHyper,
        by: Literal["image", "row"] = "image",
        half: torch.dtype = torch.float16,
    ) -> None:
        super().__init__()
        self.hyper, self.by = hyper, by
        self.dtype = half if hyper.dtype == "float16" else torch.float32
        self.register_buffer("values", None)

    def allocate(
        self,
        *,
        n_train: int,
        shape: tuple[int, ...],
        batch_size: int,
        device: torch.device,
        canvas: tuple[int, ...] | None = None,
    ) -> None:
        """Zeros for all images; by row one more than a batch has, as the last batch of an epoch may."""
        count = n_train if self.by == "image" else batch_size + 1
        size = (canvas or shape) if self.hyper.align else shape
        self.values = torch.zeros(
            count,
            *size,
            dtype=self.dtype,
            device=device if self.hyper.storage == "device" else "cpu",
        )

    def fill_zeros(self) -> None:
        """Forget everything."""
        if self.values is not None:
            self.values.zero_()

    def fill_signs(self, eps: float) -> None:
        """Independent random signs times eps."""
        if self.values is not None:
            self.values.uniform_(-1, 1).sign_().mul_(eps)

    def read(self, batch: Inputs) -> Tensor:
        """What is stored for this batch, shaped like its inputs."""
        stored = self._stored()[self._rows(batch)].to(batch.x)
        return stored if self._still(batch) else batch.transform.from_canvas(stored)

    def write(self, batch: Inputs, new: Tensor, usable: Tensor) -> None:
        """Store `new` for this batch; where `usable` is false, keep what there is."""
        values, rows = self._stored(), self._rows(batch)
        old = values[rows].to(batch.x)
        changed = new if self._still(batch) else batch.transform.to_canvas(old, new)
        values[rows] = torch.where(usable, changed, old).to(values)

    def _still(self, batch: Inputs) -> bool:
        return not self.hyper.align or batch.transform is None

    def _stored(self) -> Tensor:
        if self.values is None:
            raise UserError(f"this method stores one perturbation per {self.by}; call setup(...) first")
        return self.values

    def _rows(self, batch: Inputs) -> Tensor | slice:
        if self.by == "row":
            held, rows = len(self._stored()), batch.first_row + len(batch.x)
            if rows > held:
                raise UserError(
                    f"{held} rows are stored, the batch has {rows}; call setup(batch_size=) first"
                )
            return slice(batch.first_row, rows)
        if batch.index is None:
            raise UserError("this method needs step(..., index=): each image's position in the training set")
        return batch.index.cpu() if self.hyper.storage == "cpu" else batch.index
