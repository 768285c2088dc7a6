"""A run folder: opening it for a new or continued run, its final model, and loading that again."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from sora import models
from sora._files import write_json, write_tensors
from sora.data import Dataset
from sora.errors import RunError, UserError
from sora.training.config import RESUMABLE, TrainConfig


def read_config(folder: Path) -> dict[str, Any]:
    """The settings of an existing run."""
    path = folder / "config.yaml"
    if not path.exists():
        raise UserError(f"there is no run in {folder}: it has no config.yaml")
    return dict(yaml.safe_load(path.read_text()))


def is_finished(folder: Path) -> bool:
    """Whether a run has handed over its model and its numbers."""
    return (folder / "summary.json").exists()


def differences(stored: dict[str, Any], config: TrainConfig) -> list[str]:
    """What a continued run may not change but does, in words."""
    wanted = yaml.safe_load(config.to_yaml())
    keys = [key for key in wanted if key not in RESUMABLE]
    return [f"{key} {stored.get(key)!r} -> {wanted[key]!r}" for key in keys if stored.get(key) != wanted[key]]


def fingerprint(config: TrainConfig) -> str:
    """A short name for all settings that decide the numbers."""
    table = yaml.safe_load(config.to_yaml())
    kept = {key: value for key, value in table.items() if key not in RESUMABLE}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


def build_model(config: TrainConfig, dataset: Dataset) -> tuple[nn.Module, dict[str, Any]]:
    """The network of a run, and the table from which `load` rebuilds it."""
    spec = {
        "name": config.model,
        "num_classes": dataset.num_classes,
        "in_channels": dataset.in_channels,
        "image_size": dataset.image_size[0],
        "width": config.width,
        "mean": list(config.mean) if config.mean else None,
        "std": list(config.std) if config.std else None,
        "options": config.model_options(),
    }
    return create_model(spec), spec


def create_model(spec: dict[str, Any]) -> nn.Module:
    """A network from its table."""
    known = {key: spec[key] for key in ("num_classes", "in_channels", "image_size", "width", "mean", "std")}
    return models.create(spec["name"], **known, **spec["options"])


def plain_state(model: nn.Module) -> dict[str, Tensor]:
    """Weights under plain names, without the prefixes of wrappers."""
    names = ("module.", "_orig_mod.")
    found = {}
    for name, tensor in model.state_dict().items():
        for prefix in names:
            name = name.replace(prefix, "")
        found[name] = tensor
    return found


def save_model(folder: Path, model: nn.Module, spec: dict[str, Any], weights: str) -> None:
    """Write `model.safetensors` and `model.json`."""
    write_tensors(folder / "model.safetensors", plain_state(model), {"format": "pt"})
    write_json(folder / "model.json", {**spec, "weights": weights})


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Fill a model from a safetensors file, or say which key or shape does not fit."""
    try:
        tensors = load_file(path)
    except FileNotFoundError:
        raise UserError(f"weights file {str(path)!r} does not exist") from None
    except (SafetensorError, OSError) as error:
        raise UserError(f"{str(path)!r} is not a safetensors file ({error})") from None
    own = plain_state(model)
    for name in own.keys() ^ tensors.keys():
        where = "the model, but not in the file" if name in own else "the file, but not in the model"
        raise UserError(f"weights in {str(path)!r} do not fit the model: {name!r} is in {where}")
    for name, tensor in tensors.items():
        if tensor.shape != own[name].shape:
            shapes = f"{tuple(tensor.shape)} in the file, {tuple(own[name].shape)} in the model"
            raise UserError(f"weights in {str(path)!r} do not fit the model: {name!r} is {shapes}")
    with torch.no_grad():
        for name, tensor in tensors.items():
            own[name].copy_(tensor)


def check_own(name: str, repeated: str | None) -> None:
    """Raise unless the user repeats a network of his own: no code is imported on a file's word alone."""
    if ":" in name and repeated != name:
        raise UserError(f"this run's network is the user's own; repeat it: --model {name}")


def load(run: str | Path, *, model: str | None = None, device: str = "cpu") -> nn.Module:
    """The trained model of a run, from [0, 1] images to logits, in evaluation mode.

    Args:
        run: The run folder.
        model: Must repeat the run's `package.module:function` if it was trained with the user's own
            network: code named in a file is never imported on the file's word alone.
        device: Where the model should be.
    """
    folder = Path(run)
    try:
        spec = json.loads((folder / "model.json").read_text())
    except FileNotFoundError:
        raise UserError(f"there is no finished run in {str(run)!r}: it has no model.json") from None
    except ValueError as error:
        raise RunError(f"{folder / 'model.json'} is damaged ({error})") from None
    check_own(spec["name"], model)
    found = create_model(spec)
    load_weights(found, folder / "model.safetensors")
    return models.fast_layout(found.to(device)).eval()


def resolved(config: TrainConfig, device: torch.device) -> TrainConfig:
    """The settings with nothing left open."""
    threads = config.threads or torch.get_num_threads()
    chosen = device.type if config.device == "auto" else config.device  # no index: each rank has its own
    return dataclasses.replace(config, device=chosen, threads=threads, out=str(config.folder()))
