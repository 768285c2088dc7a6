"""Training a module one already has, on data one already has, in one call."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sora import data as datasets
from sora._checks import check_model
from sora.data import Dataset, ImageSet
from sora.data.dataset import check_labels
from sora.errors import UserError
from sora.models import own_layout
from sora.runs import RunFolder
from sora.settings import GIVEN, Request
from sora.training.hooks import Hook
from sora.training.loop import train
from sora.training.result import TrainResult

TensorPair = tuple[Tensor, Tensor]


def fit(
    model: nn.Module,
    data: str | Dataset | tuple[TensorPair, TensorPair],
    method: str = "sora",
    eps: str | float = "8/255",
    *,
    out: str | Path | None = None,
    resume: bool = False,
    hooks: Sequence[Hook] = (),
    quiet: bool = False,
    **settings: Any,
) -> TrainResult:
    """Train `model` in place and return its evaluation on the test images.

    The module comes back on the training's device, its tensors laid out in memory as they were before.

    Args:
        model: From [0, 1] images to logits, with its own normalisation inside.
        data: A data set's name, a `sora.data.Dataset`, or `((x, y), (x_test, y_test))` with uint8 images of
            shape (N, C, H, W) and labels.
        method: Name of the training method.
        eps: Radius in pixel units.
        out: A run folder to keep; without one nothing is left on disk.
        resume: Continue the unfinished run in `out`; otherwise `out` must not hold a run.
        hooks: Called around every step, see `sora.training.Hook`.
        quiet: Print nothing while working.
        **settings: Any other setting of `sora train`, e.g. `epochs=10`.
    """
    check_model(model)
    if isinstance(data, str):
        name, dataset = data, datasets.load(data, settings.get("data_dir"))
    else:
        dataset = as_dataset(data)
        name = f"{GIVEN}{dataset.name.removeprefix(GIVEN)}"
    if out is not None and RunFolder(out).exists() and not resume:
        raise UserError(f"{out} already holds a run; choose another folder or pass resume=True")
    with tempfile.TemporaryDirectory() as scratch, own_layout(model):
        given = {
            **settings,
            "dataset": name,
            "model": f"{GIVEN}{type(model).__name__}",
            "method": method,
            "eps": str(eps),
            "out": str(out or Path(scratch) / "run"),
        }
        resolved = Request(given, source="argument").resolve()
        result = train(resolved, model=model, dataset=dataset, hooks=hooks, quiet=quiet)
    return result if out is not None else dataclasses.replace(result, folder=None)


def as_dataset(data: Dataset | tuple[TensorPair, TensorPair]) -> Dataset:
    """Tensors as a data set; images must be uint8, so that nobody trains on normalised ones by accident."""
    if isinstance(data, Dataset):
        return data
    try:
        (x, y), (x_test, y_test) = data
    except (TypeError, ValueError):
        raise UserError(
            f"data is {type(data).__name__}; expected a name, a Dataset, or ((x, y), (x_test, y_test))"
        ) from None
    sets = [_as_images(x, y), _as_images(x_test, y_test)]
    count = max(check_labels(part.labels) for part in sets) + 1
    return Dataset(f"{GIVEN}tensors", sets[0], sets[1], None, tuple(str(k) for k in range(count)))


def _as_images(images: Tensor, labels: Tensor) -> ImageSet:
    for what, tensor in (("images", images), ("labels", labels)):
        if not isinstance(tensor, Tensor):
            raise UserError(f"{what} are {type(tensor).__name__}; expected a torch.Tensor")
    if images.dim() != 4 or images.dtype != torch.uint8 or not len(images):
        raise UserError(f"images are {images.dtype} {tuple(images.shape)}; expected uint8 (N, C, H, W)")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise UserError(f"labels are {labels.dtype}; expected whole numbers")
    return ImageSet(images.permute(0, 2, 3, 1).contiguous(), labels.long())
