"""Train an existing module on existing data in one call."""

import dataclasses
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils import data as torch_data

from sora import data as datasets
from sora._checks import check_model, has_integers
from sora._task import CLASSES, PLAIN, Judge, Task
from sora.data import Dataset, ExampleSet, GivenData, ImageSet
from sora.data.dataset import check_labels, check_same_size
from sora.data.inputs import SAMPLED, as_floats, from_batches, from_items, from_tensors
from sora.errors import UserError, short
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
Part = Pair | Iterable[Any]  # a pair of tensors or arrays, a torch Dataset, a DataLoader or a list of batches
ROUNDING = 1e-6  # how far a float image may be from an integer number of pixel levels, in units of the image


def fit(
    model: nn.Module,
    data: str | Dataset | tuple[Part, Part],
    method: str = "sora",
    eps: str | float | None = None,
    *,
    box: Sequence[float] | None = (0.0, 1.0),
    loss: str | Judge = CLASSES,
    outputs: Callable[[Any], Tensor] | None = None,
    correct: Judge | None = None,
    class_weights: Sequence[float] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    hooks: Sequence[Hook] = (),
    trackers: str | Sequence[str] = (),
    recipe: str | None = None,
    quiet: bool = False,
    **settings: Any,
) -> TrainResult:
    """Train `model` in place and return its evaluation on the test examples.

    The module comes back on the training's device, its tensors laid out in memory as they were before, in the
    mode it was in. Parts in evaluation mode inside a module in training mode, as a frozen BatchNorm, stay so.

    Args:
        model: From inputs in the box to logits, with its own normalisation inside.
        data: A data set's name, a `sora.data.Dataset`, or `(train, test)`. Each of these two is a pair (x, y)
            of tensors or NumPy arrays, a torch `Dataset` of such pairs, a `DataLoader` or a list of batches:
            uint8 images (N, C, H, W), or floats of any shape. A `DataLoader` or list to train on is iterated
            anew in each epoch, in its own order and batch size.
        method: Name of the training method.
        eps: Radius in the units of the input; by default that of the recipe, 8/255 for data without one.
        box: Limits of valid inputs; None for data without limits, as tables.
        loss: `cross-entropy`, `binary`, `multi-label`, or a function `(output, target) -> (B,)`.
        outputs: From what the model returns to a tensor; logits are recognised without it.
        correct: A function `(output, target) -> (B,)` of bools, for the accuracy of another task.
        class_weights: Factor on the loss of each class, for `cross-entropy`.
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
    task = Task(loss, outputs, correct, class_weights)  # type: ignore[arg-type]
    with _named_as_arguments():
        if isinstance(data, str):
            name, dataset = data, datasets.load(data, settings.get("data_dir"))
        else:
            dataset = as_dataset(data, task, next((p.dtype for p in model.parameters()), torch.float32))
            name = f"{GIVEN}{dataset.name.removeprefix(GIVEN)}"
        if isinstance(dataset, GivenData) and dataset.stream is not None:
            for key in filter(settings.get, ("holdout", "limit_train", "batch_size")):
                raise UserError(f"{key} is for tensors and torch Datasets; a stream makes its own batches")
            settings = settings | {"holdout": 0, "batch_size": len(next(iter(dataset.stream))[1])}
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
                result = train(
                    resolved, model=model, dataset=dataset, hooks=hooks, quiet=quiet, task=task, box=box
                )
            except Interrupted as stopped:
                if out is not None:
                    raise
                lost = "nothing is kept; with out= there would be a checkpoint"
                raise Interrupted(stopped.number, stopped.step, stopped.where, lost) from None
        return result if out is not None else dataclasses.replace(result, folder=None)


@contextmanager
def _named_as_arguments() -> Iterator[None]:
    """Call settings by their names in Python: most messages name flags."""
    try:
        yield
    except UserError as error:
        text = re.sub(r"--([a-z][a-z-]*)", lambda flag: flag[1].replace("-", "_"), str(error))
        raise UserError(text) from error


def as_dataset(
    data: Dataset | tuple[Part, Part], task: Task = PLAIN, dtype: torch.dtype = torch.float32
) -> Dataset:
    """Turn what `fit` takes into a data set: uint8 images stay what they are, other inputs become floats."""
    if isinstance(data, Dataset):
        return data
    try:
        train, test = data
    except (TypeError, ValueError):
        raise UserError(
            f"data is {type(data).__name__}; expected a name, a Dataset, or (train, test), each a pair"
            " (x, y), a torch Dataset, a DataLoader or a list of batches"
        ) from None
    stream = None if isinstance(train, tuple) or _has_items(train) else train
    if isinstance(stream, Iterable) and not isinstance(stream, Sized):
        raise UserError(
            f"a {type(stream).__name__} has no len(), which the schedule needs, or is read only once; pass"
            " a DataLoader or a list of batches"
        )
    parts = [_as_set(train, task, dtype, SAMPLED), _as_set(test, task, dtype)]
    images = [part for part in parts if isinstance(part, ImageSet)]
    classes = range(max(check_labels(part.labels) for part in parts) + 1)
    names = tuple(str(k) for k in classes)
    if len(images) == len(parts):
        check_same_size({"train": images[0], "test": images[1]})
        return Dataset(f"{GIVEN}tensors", images[0], images[1], None, names)
    floats = [as_floats(part, dtype) if isinstance(part, ImageSet) else part for part in parts]
    kind = "tensors" if isinstance(train, tuple) else type(train).__name__
    indexed = stream is None or len(next(iter(stream))) > 2
    return GivenData(f"{GIVEN}{kind}", floats[0], floats[1], None, names, stream=stream, indexed=indexed)


def _has_items(part: object) -> bool:
    return isinstance(part, torch_data.Dataset) and not isinstance(part, torch_data.IterableDataset)


def _as_set(part: Part, task: Task, dtype: torch.dtype, most: int | None = None) -> ImageSet | ExampleSet:
    if _has_items(part):
        return from_items(part, dtype)
    if not isinstance(part, tuple):
        if isinstance(part, str) or not isinstance(part, Iterable):
            raise UserError(f"data has {short(part)}; expected a pair (x, y), a Dataset or batches")
        return from_batches(part, dtype, most)
    if len(part) != 2:
        raise UserError(f"data has a tuple of {len(part)}; expected a pair (x, y), or batches in a list")
    tensors = []
    for what, values in (("inputs", part[0]), ("labels", part[1])):
        try:
            # A copy, because torch refuses arrays with negative strides.
            tensors.append(torch.as_tensor(values.copy() if hasattr(values, "copy") else values))
        except (TypeError, ValueError, RuntimeError):
            raise UserError(f"{what} are {type(values).__name__}; expected a tensor or an array") from None
    inputs, targets = tensors
    pixels = _as_pixels(inputs) if task.has_classes else None
    if pixels is None:
        return from_tensors(inputs / 255 if inputs.dtype == torch.uint8 else inputs, targets, dtype)
    if not has_integers(targets) or targets.dim() != 1:
        task.check_targets(inputs, targets)
    return ImageSet(pixels.permute(0, 2, 3, 1).contiguous(), targets.long())


def _as_pixels(images: Tensor) -> Tensor | None:
    """Return images as uint8, floats only if nothing is lost; None for other inputs."""
    if images.dim() != 4 or not len(images) or images.dtype == torch.uint8:
        return images if images.dim() == 4 and len(images) else None
    levels = (images * 255).round() if images.is_floating_point() else None
    if levels is None or levels.min() < 0 or levels.max() > 255:
        return None
    return levels.to(torch.uint8) if (images - levels / 255).abs().max() <= ROUNDING else None
