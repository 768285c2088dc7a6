"""The network of a run: how it is described in `model.json`, built, saved and loaded again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sora import models
from sora.data import Dataset
from sora.errors import UserError, short
from sora.runs.digests import plain_state
from sora.runs.folder import RunFolder
from sora.runs.weights import read_weights
from sora.settings import GIVEN, Settings, is_custom, is_given


def describe_network(settings: Settings, dataset: Dataset) -> dict[str, Any]:
    """What rebuilds the network, and what a user of the weights must know about their input."""
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
    }


def build_network(description: Mapping[str, Any], weights: Path | None = None) -> nn.Module:
    """A network from its description, with fresh weights; `weights` is a file that an error can point to."""
    name = description["name"]
    if is_given(name):
        raise UserError(
            f"this run trained a module given in Python ({name.removeprefix(GIVEN)}), which no file can build"
            " again; in Python: sora.load(run, model=your_module); on the command line, with a function that"
            f" builds it: sora evaluate --weights {weights or 'RUN/model.safetensors'}"
            " --model package.module:function --dataset NAME"
        )
    sizes = ("num_classes", "in_channels", "image_size", "width", "mean", "std")
    try:
        given = {key: description[key] for key in sizes} | description["options"]
    except (KeyError, TypeError) as error:
        raise UserError(f"the description of the network is damaged: {short(error)}") from None
    return models.create(name, **given)


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Fill a model from a file (see `read_weights`), or say which name or shape does not match."""
    own = plain_state(model)
    tensors = read_weights(path, own)
    for name in own.keys() ^ tensors.keys():
        where = "the model, but not in the file" if name in own else "the file, but not in the model"
        raise UserError(f"weights in {str(path)!r} do not match the model: {name!r} is in {where}")
    for name, tensor in tensors.items():
        if tensor.shape != own[name].shape:
            shapes = f"{tuple(tensor.shape)} in the file, {tuple(own[name].shape)} in the model"
            raise UserError(f"weights in {str(path)!r} do not match the model: {name!r} is {shapes}")
    with torch.no_grad():
        for name, tensor in tensors.items():
            own[name].copy_(tensor)


def load(
    run: str | Path | RunFolder, *, model: str | nn.Module | None = None, device: str = "cpu"
) -> nn.Module:
    """The trained model of a run, from [0, 1] images to logits, in evaluation mode.

    Args:
        run: The run folder.
        model: For a run that trained a network of your own: your module, which is filled with the weights, or
            the `package.module:function` that builds it. Code is never imported only because a file names it.
        device: Where the model should be.
    """
    folder = run if isinstance(run, RunFolder) else RunFolder(run)
    description = folder.read_model()
    if not isinstance(model, nn.Module):
        check_repeated(description["name"], model, how=f"sora.load(run, model={description['name']!r})")
    folder.check_weights(description)
    return load_network(description, folder.weights, model, device)


def load_network(
    description: Mapping[str, Any], weights: Path, model: str | nn.Module | None, device: str = "cpu"
) -> nn.Module:
    """A described network with the weights of a file, e.g. of a snapshot."""
    if not isinstance(description.get("name"), str):
        raise UserError("the description of the network is damaged: it has no name")
    if isinstance(model, nn.Module):
        network = model
    elif model is not None and not isinstance(model, str):
        raise UserError(f"model is {short(model)}; expected a module or package.module:function")
    else:
        check_repeated(description["name"], model)
        network = build_network(description, weights)
    load_weights(network, weights)
    return models.fast_layout(network.to(device)).eval()


def check_repeated(name: str, repeated: str | None, how: str = "") -> None:
    """Raise unless the user specifies the custom network again: no code runs because a file names it.

    Another network than the run's is refused too.
    """
    if is_custom(name) and not is_given(name) and repeated != name:
        raise UserError(f"this run's network is custom code; specify it again: {how or f'--model {name}'}")
    if repeated is not None and not is_given(name) and repeated.strip().lower() != name.lower():
        raise UserError(f"this run's network is {name}, not {short(repeated)}; its weights fit no other")
