"""What a method keeps between batches, as part of its `state_dict`: perturbations, a count, an optimiser."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sora._passes import Scale, scaled, unscaled
from sora._typed import option
from sora.errors import UserError
from sora.methods._records import Hyper, Inputs, PenaltyHyper


@dataclass(frozen=True)
class StorageHyper(Hyper):
    """Hyper-parameters of methods that store something per training image."""

    dtype: Literal["float32", "float16"] = option("float32", "number format of stored perturbations")
    storage: Literal["device", "cpu"] = option(
        "device", "where perturbations are stored; with cpu, every step waits for a copy"
    )


@dataclass(frozen=True)
class MemoryHyper(StorageHyper, PenaltyHyper):
    """The same for methods that do not, as published, move perturbations with their image."""

    align: bool = option(
        False, "move stored perturbations with the crop and flip of their image, as ATAS does"
    )


class Memory(nn.Module):
    """A tensor like an input for each training image, or by "row" of the batch as in Free AT; a buffer.

    With `align` it lies on the padded canvas of augmentation and moves with the image. `half` is what the
    dtype "float16" means: bfloat16 for numbers that float16 would round to 0.
    """

    values: Tensor | None

    def __init__(
        self,
        hyper: StorageHyper,
        by: Literal["image", "row"] = "image",
        *,
        align: bool = False,
        half: torch.dtype = torch.float16,
    ) -> None:
        super().__init__()
        self.on_host, self.by, self.align = hyper.storage == "cpu", by, align
        self.dtype = half if hyper.dtype == "float16" else torch.float32
        self.register_buffer("values", None)

    def allocate(
        self,
        device: torch.device,
        *,
        n_train: int,
        shape: tuple[int, ...],
        batch_size: int,
        canvas: tuple[int, ...] | None = None,
        **_: Any,
    ) -> None:
        """Store zeros for all images; by row one more than a batch has, as an epoch's last batch may."""
        count = n_train if self.by == "image" else batch_size + 1
        size = (canvas or shape) if self.align else shape
        device = torch.device("cpu") if self.on_host else device
        self.values = torch.zeros(count, *size, dtype=self.dtype, device=device)

    def fill_signs(self, eps: float) -> None:
        """Store independent random signs times eps."""
        self.stored().uniform_(-1, 1).sign_().mul_(eps)

    def read(self, batch: Inputs) -> Tensor:
        """Return what is stored for this batch, shaped like its inputs."""
        stored = self.stored()[self._rows(batch)].to(batch.x)
        return batch.transform.from_canvas(stored) if self._moves(batch) else stored

    def write(self, batch: Inputs, new: Tensor, usable: Tensor | None = None) -> None:
        """Store `new` for this batch; where `usable` is false, keep what there is."""
        values, rows = self.stored(), self._rows(batch)
        old = values[rows].to(batch.x)
        changed = batch.transform.to_canvas(old, new) if self._moves(batch) else new
        values[rows] = (changed if usable is None else torch.where(usable, changed, old)).to(values)

    def _moves(self, batch: Inputs) -> bool:
        return self.align and batch.transform is not None

    def stored(self) -> Tensor:
        """Return all that is stored; raise before `setup`."""
        if self.values is None:
            raise UserError(
                f"this method stores one perturbation per {self.by}; call setup(n_train=..., ...) first"
            )
        return self.values

    def _rows(self, batch: Inputs) -> Tensor | slice:
        if self.by == "row":
            held, rows = len(self.stored()), batch.first_row + len(batch.x)
            if rows > held:
                raise UserError(
                    f"{held} rows are stored, the batch has {rows}; call setup(batch_size=) first"
                )
            return slice(batch.first_row, rows)
        if batch.index is None:
            raise UserError("this method needs step(..., index=): each image's position in the training set")
        return batch.index.cpu() if self.on_host else batch.index


class BatchCounter(nn.Module):
    """Counts the batches of an epoch, for an extra pass every few batches; on the host, to decide at once."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def due(self, every: int) -> bool:
        """Count a batch; true for the 1st of the epoch and then for each `every`-th after it."""
        self.seen += 1
        return (self.seen - 1) % every == 0

    def get_extra_state(self) -> Tensor:
        """Return the count, for `state_dict`."""
        return torch.tensor(self.seen)

    def set_extra_state(self, state: Any) -> None:
        """Restore what `get_extra_state` returned."""
        self.seen = int(state)


class OwnOptimizer(nn.Module):
    """Makes an optimiser's state part of its method's `state_dict`, so that runs resume bit for bit.

    For a head or a predictor that is not part of the trained model. Create it in `setup`, after the
    parameters and on their device: `self.adam = OwnOptimizer(Adam(...))`. Its state must be tensors.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__()
        self.optimizer = optimizer

    def minimize(self, loss: Tensor, loss_scale: Scale = None) -> None:
        """Make one step that lowers `loss`, unscaled. No gradient reaches parameters of anything else.

        Entries of the gradient that are not finite count as 0: one bad batch must not ruin the parameters.
        """
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        gradients = torch.autograd.grad(scaled(loss, loss_scale), parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            gradient = unscaled(gradient, loss_scale)
            parameter.grad = torch.where(gradient.isfinite(), gradient, 0.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        for index, slots in self.optimizer.state_dict()["state"].items():
            for slot, value in slots.items():
                if value is not None:
                    destination[f"{prefix}{index}.{slot}"] = value

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *_: Any) -> None:
        state: dict[int, dict[str, Tensor]] = {}  # empty before the optimiser's first step
        for name, value in state_dict.items():
            if name.startswith(prefix):
                index, slot = name.removeprefix(prefix).split(".", 1)
                state.setdefault(int(index), {})[slot] = value.clone()  # the optimiser changes it in place
        # This moves the state to the devices where the optimiser expects it.
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})
