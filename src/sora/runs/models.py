"""The model of a run and the data it was trained on: described in its files, built and loaded again."""

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from sora import data, models
from sora.data import Dataset
from sora.errors import UserError, short
from sora.runs.folder import RunFolder
from sora.runs.weights import load_weights
from sora.settings import GIVEN, Settings, data_dir_of_run, is_custom, is_given


def describe_model(settings: Settings, dataset: Dataset, given: nn.Module | None = None) -> dict[str, Any]:
    """Return what rebuilds the model, and what a user of the weights must know about their input.

    A module given in Python is rebuilt if `sora.models.create` made it; of another only its name is stored.
    """
    known = {} if given is None else models.built_as(given) or {"importable": _importable(type(given))}
    return {
        "name": settings.model,
        "num_classes": dataset.num_classes,
        "in_channels": dataset.in_channels,
        "image_size": dataset.image_size[0],
        "width": settings.width,
        "mean": list(settings.mean) if settings.mean else None,
        "std": list(settings.std) if settings.std else None,
        "options": settings.model_options(),
        "classes": list(dataset.classes),
        **known,
    }


def _importable(kind: type) -> str | None:
    """Return where a class of the user's own can be imported from, if it can."""
    local = kind.__module__ == "__main__" or "." in kind.__qualname__
    return None if local or kind.__module__.startswith("torch.") else f"{kind.__module__}:{kind.__qualname__}"


def build_model(description: Mapping[str, Any], weights: Path | None = None) -> nn.Module:
    """Build a model from its description, with fresh weights; an error can point to the file `weights`."""
    name = description["name"]
    if is_given(name):
        repeated = description.get("importable")
        named = f", or model={repeated!r} to import it" if repeated else ""
        raise UserError(
            f"this run trained a module given in Python ({name.removeprefix(GIVEN)}), which no file can build"
            f" again; in Python: sora.load(run, model=your_module){named}; on the command line, with a"
            f" function that builds it: sora evaluate --weights {weights or 'RUN/model.safetensors'}"
            " --model package.module:function --dataset NAME"
        )
    sizes = ("num_classes", "in_channels", "image_size", "width", "mean", "std")
    try:
        given = {key: description[key] for key in sizes} | description["options"]
    except (KeyError, TypeError) as error:
        raise UserError(f"the description of the model is damaged: {short(error)}") from None
    return models.create(name, **given)


def load(
    run: str | Path | RunFolder, *, model: str | nn.Module | None = None, device: str = "cpu"
) -> nn.Module:
    """Load the trained model of a run, from [0, 1] images to logits, in evaluation mode.

    Args:
        run: The run folder, or `zoo:NAME` for a model that comes with the package (`sora list zoo`).
        model: For a run that trained a model of your own: your module, which is filled with the weights, or
            the `package.module:function` or class that builds it. Code is never imported only because a file
            names it.
        device: Where the model should be.
    """
    folder = run if isinstance(run, RunFolder) else RunFolder(run)
    description = folder.read_model()
    how = f"sora.load(run, model={description.get('name')!r})"
    folder.check_weights(description)
    return load_model(description, folder.weights, model, device, how=how)


def load_model(
    description: Mapping[str, Any],
    weights: Path,
    model: str | nn.Module | None,
    device: str = "cpu",
    *,
    how: str = "",
) -> nn.Module:
    """Load a described model with the weights of a file, e.g. of a snapshot.

    `model` is a module to fill, or the name, which must be repeated for custom code; `how` says how to.
    """
    name = description.get("name")
    if not isinstance(name, str):
        raise UserError("the description of the model is damaged: it has no name")
    if isinstance(model, nn.Module):
        built = model
    elif model is not None and not isinstance(model, str):
        raise UserError(f"model is {short(model)}; expected a module or package.module:function")
    else:
        check_repeated(name, model, how)
        if model is not None and is_given(name):  # named by the user; `build_model` says so if it is not
            sizes = {"num_classes": max(2, description["num_classes"])}
            description = {**description, **sizes, "name": model, "width": None}
        built = build_model(description, weights)
    load_weights(built, weights)
    return models.fast_layout(built.to(device)).eval()


def load_initial(model: nn.Module, init: str, classes: Sequence[str]) -> str:
    """Fill a model with the weights that training starts from: a file, a run folder or `zoo:NAME`.

    If they are for other classes, the last layer keeps the weights it has, and this is returned in words.
    """
    run = RunFolder(init)
    file = run.weights if run.has_model() else Path(init)
    run = RunFolder(file.parent)
    known = run.read_model() if run.has_model() and file == run.weights else {}
    heads = [pair for pair in model.named_modules() if isinstance(pair[1], nn.Linear)]
    name, head = heads[-1] if heads else ("", model)
    fresh = copy.deepcopy(head.state_dict())
    said = load_weights(model, file, new_head=True)
    if not said and heads and known.get("classes", [*classes]) != [*classes]:
        head.load_state_dict(fresh)
        said = f"{file} was trained for other classes: {name} is a new head"
    return said


def check_repeated(name: str, repeated: str | None, how: str = "") -> None:
    """Raise unless the user specifies the custom model again: no code runs because a file names it.

    Another model than the run's is refused too.
    """
    if is_custom(name) and not is_given(name) and repeated != name:
        raise UserError(f"this run's model is custom code; specify it again: {how or f'--model {name}'}")
    if repeated is not None and not is_given(name) and repeated.strip().lower() != name.lower():
        raise UserError(f"this run's model is {name}, not {short(repeated)}; its weights fit no other")


def load_data(
    folder: RunFolder, settings: Settings, dataset: str | None = None, data_dir: str | None = None
) -> Dataset:
    """Load the data set of a run, or another one with its classes, from any working directory.

    A run stores where its data is besides its name; `data_dir` is another folder of data sets.
    """
    stored: dict[str, Any] = folder.read_config().get("absolute") or {}
    name, root = settings.dataset, settings.data_dir
    if _exists(str(stored.get("dataset", "")).partition(":")[2].partition("?")[0]):
        name = stored["dataset"]
    if _exists(stored.get("data_dir")):
        root = stored["data_dir"]
    place = data_dir_of_run(dataset or name, root, data_dir)
    loaded = data.load(dataset or name, place)
    known = folder.read_model().get("classes") if folder.has_model() else None
    pairs = zip(known, loaded.classes, strict=False) if isinstance(known, list) else ()
    for number, (then, now) in enumerate(pairs):  # data without names of classes calls them 0, 1, ...
        if then != now and (str(number) not in (then, now) or f"{then}{now}".isdecimal()):
            found = f"class {number} of {loaded.name} is {short(now)}, but was {short(then)} in training"
            raise UserError(f"{found}; restore the names and the order of its classes")
    return loaded if dataset is not None else dataclasses.replace(loaded, name=settings.dataset)


def _exists(path: str | None) -> bool:
    return bool(path) and Path(str(path)).exists()
