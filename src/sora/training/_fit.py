"""Training a module one already has, on data one already has, in one call."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from sora import data as sources
from sora.data import Dataset, ImageSet
from sora.errors import UserError
from sora.models import own_layout
from sora.training.config import TrainConfig, defaults
from sora.training.loop import train

TensorPair = tuple[Tensor, Tensor]


def fit(
    model: nn.Module,
    data: str | Dataset | tuple[TensorPair, TensorPair],
    method: str = "sora",
    eps: str | float = "8/255",
    *,
    out: str | Path | None = None,
    quiet: bool = False,
    **settings: Any,
) -> dict[str, Any]:
    """Train `model` in place and return what `summary.json` would hold.

    The module comes back on the training's device, its tensors laid out in memory as they were before.

    Args:
        model: From [0, 1] images to logits, with its own normalisation inside.
        data: A data set's name, a `sora.data.Dataset`, or `((x, y), (x_test, y_test))` with uint8 images of
            shape (N, C, H, W) and labels.
        method: Name of the training method.
        eps: Radius in pixel units.
        out: A run folder to keep; without one nothing is left on disk.
        quiet: Say nothing while working.
        **settings: Any other setting of `sora train`, e.g. `epochs=10`.
    """
    name = data if isinstance(data, str) else "digits"
    dataset = sources.load(data) if isinstance(data, str) else as_dataset(data)
    base = defaults(name, method) if isinstance(data, str) else {"dataset": name, "method": method}
    with tempfile.TemporaryDirectory() as scratch, own_layout(model):
        table = {**base, **settings, "eps": str(eps), "out": str(out or Path(scratch) / "run")}
        table["set"] = {key: v for key, v in table.get("set", {}).items() if not key.startswith("model.")}
        return train(TrainConfig.build(table), model=model, dataset=dataset, quiet=quiet)


def as_dataset(data: Dataset | tuple[TensorPair, TensorPair]) -> Dataset:
    """Tensors as a data set; images must be uint8, so that nobody trains on normalised ones by accident."""
    if isinstance(data, Dataset):
        return data
    sets = []
    for images, labels in data:
        if images.dim() != 4 or str(images.dtype) != "torch.uint8":
            raise UserError(f"images are {images.dtype} {tuple(images.shape)}; expected uint8 (N, C, H, W)")
        sets.append(ImageSet(images.permute(0, 2, 3, 1).contiguous(), labels.long()))
    count = int(max(part.labels.max() for part in sets)) + 1
    return Dataset("given", sets[0], sets[1], None, tuple(str(k) for k in range(count)))
