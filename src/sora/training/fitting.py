"""Train an existing module on existing data in one call."""

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sora import data as datasets
from sora._checks import check_model, has_integers
from sora.data import Dataset, ImageSet
from sora.data.dataset import check_labels, check_same_size
from sora.errors import UserError
from sora.models import own_layout
from sora.runs import RunFolder
from sora.runs.resume import settings_of_run
from sora.settings import GIVEN, Request
from sora.training.hooks import Hook
from sora.training.loop import train
from sora.training.process import Interrupted
from sora.training.result import TrainResult

Array = Tensor | NDArray[Any]
Pair = tuple[Array, Array]
ROUNDING = 1e-6  # how far a float image may be from an integer number of pixel levels, in units of the image


def fit(
    model: nn.Module,
    data: str | Dataset | tuple[Pair, Pair],
    method: str = "sora",
    eps: str | float | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    hooks: Sequence[Hook] = (),
    trackers: str | Sequence[str] = (),
    recipe: str | None = None,
    quiet: bool = False,
    **settings: Any,
) -> TrainResult:
    """Train `model` in place and return its evaluation on the test images.

    The module comes back on the training's device, its tensors laid out in memory as they were before, in the
    mode it was in. Parts in evaluation mode inside a module in training mode, as a frozen BatchNorm, stay so.

    Args:
        model: From [0, 1] images to logits, with its own normalisation inside.
        data: A data set's name, a `sora.data.Dataset`, or `((x, y), (x_test, y_test))`, tensors or NumPy
            arrays: images of shape (N, C, H, W), uint8 or the same divided by 255, and labels.
        method: Name of the training method.
        eps: Radius in pixel units; by default that of the recipe, 8/255 for data without one.
        out: A run folder to keep; without one nothing is left on disk.
        resume: Continue the unfinished run in `out`; otherwise `out` must not hold a run.
        hooks: Called around every step, see `sora.training.Hook`.
        trackers: Also record the run with `tensorboard`, `wandb` or both; their files are in `out`.
        recipe: The recipe to start from; the data set's own by default.
        quiet: Print nothing while working.
        **settings: Any other setting of `sora train`, e.g. `epochs=10`.
    """
    check_model(model)
    if "dataset" in settings:
        raise UserError("dataset is the second argument of fit: a name, a Dataset or a pair of pairs")
    if isinstance(data, str):
        name, dataset = data, datasets.load(data, settings.get("data_dir"))
    else:
        dataset = as_dataset(data)
        name = f"{GIVEN}{dataset.name.removeprefix(GIVEN)}"
    without_effect = [key for key in settings.get("set") or {} if str(key).startswith("model.")]
    without_effect += [key for key in ("width", "mean", "std") if settings.get(key) is not None]
    if without_effect:
        raise UserError(f"{without_effect[0]} is for built-in models; a module is trained as it is given")
    if trackers and out is None:
        raise UserError("trackers write to the run folder; pass out=")
    with tempfile.TemporaryDirectory() as scratch, own_layout(model):
        given = {
            **settings,
            "dataset": name,
            "model": f"{GIVEN}{type(model).__name__}",
            "method": method,
            **({} if eps is None else {"eps": str(eps)}),
            **({"tracker": trackers} if trackers else {}),
            "out": str(out or Path(scratch) / "run"),
        }
        request = Request(given, source="argument", recipe=recipe)
        if out is not None and RunFolder(out).exists() and not resume:
            request.resolve()  # mistakes in the request are reported before a used folder is
            raise UserError(f"{out} already holds a run; choose another folder or pass resume=True")
        resolved = settings_of_run(request, "auto" if resume else None)
        try:
            result = train(resolved, model=model, dataset=dataset, hooks=hooks, quiet=quiet)
        except Interrupted as stopped:
            if out is not None:
                raise
            lost = "nothing is kept; with out= there would be a checkpoint"
            raise Interrupted(stopped.number, stopped.step, stopped.where, lost) from None
    return result if out is not None else dataclasses.replace(result, folder=None)


def as_dataset(data: Dataset | tuple[Pair, Pair]) -> Dataset:
    """Turn tensors or arrays into a data set; refuse normalised ones, as eps is in pixel units."""
    if isinstance(data, Dataset):
        return data
    try:
        (x, y), (x_test, y_test) = data
    except (TypeError, ValueError):
        raise UserError(
            f"data is {type(data).__name__}; expected a name, a Dataset, or ((x, y), (x_test, y_test))"
        ) from None
    sets = [_as_images(x, y), _as_images(x_test, y_test)]
    check_same_size({"train": sets[0], "test": sets[1]})
    count = max(check_labels(part.labels) for part in sets) + 1
    return Dataset(f"{GIVEN}tensors", sets[0], sets[1], None, tuple(str(k) for k in range(count)))


def _as_images(images: Array, labels: Array) -> ImageSet:
    tensors = []
    for what, values in (("images", images), ("labels", labels)):
        try:
            # A copy, because torch refuses arrays with negative strides.
            tensors.append(torch.as_tensor(values.copy() if hasattr(values, "copy") else values))
        except (TypeError, ValueError, RuntimeError):
            raise UserError(f"{what} are {type(values).__name__}; expected a tensor or an array") from None
    pixels, classes = _as_pixels(tensors[0]), tensors[1]
    if not has_integers(classes):
        raise UserError(f"labels are {classes.dtype}; expected integers")
    return ImageSet(pixels.permute(0, 2, 3, 1).contiguous(), classes.long())


def _as_pixels(images: Tensor) -> Tensor:
    """Convert images to uint8, floats only if nothing is lost."""
    if images.dim() == 4 and images.dtype == torch.uint8 and len(images):
        return images
    came = f"images are {images.dtype} {tuple(images.shape)}"
    if images.dim() == 4 and images.is_floating_point() and images.numel():
        levels = (images * 255).round()
        if levels.min() >= 0 and levels.max() <= 255 and (images - levels / 255).abs().max() <= ROUNDING:
            return levels.to(torch.uint8)
        came += f" in [{images.min():.3g}, {images.max():.3g}]"
    raise UserError(
        f"{came}; expected uint8 (N, C, H, W), or the same divided by 255: not normalised, not augmented"
    )
