"""Fingerprints of networks, weights, examples and evaluations: equal fingerprints mean equal results."""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import sora
from sora.evaluation.examples import Examples
from sora.runs import plain_state
from sora.threat import Threat

CHUNK = 100  # examples in memory at a time
Fingerprint = dict[str, Any]


def weights_fingerprint(model: nn.Module) -> str:
    """A fingerprint of all parameters and buffers and their names."""
    # A module may store other objects in its state.
    return _of_tensors({name: value for name, value in plain_state(model).items() if _is_tensor(value)})


def weights_fingerprint_of_file(path: Path) -> str:
    """The fingerprint that the model of a safetensors file has."""
    return _of_tensors(load_file(path))


def network_fingerprint(model: nn.Module, description: Mapping[str, Any] | None = None) -> str:
    """A fingerprint of what a network computes with its weights.

    Covers its description (name, width, options), the class, source text and plain attributes of every
    module, and so also a function of the user's own: two networks may have the same weights and differ in
    code or in an option alone.
    """
    digest = hashlib.blake2b(digest_size=8)
    digest.update(json.dumps(description or {}, sort_keys=True, default=str).encode())
    sources: dict[str, str] = {}
    for name, module in model.named_modules():
        kind = type(module)
        digest.update(f"\n{name} {kind.__module__}.{kind.__qualname__}".encode())
        for base in kind.__mro__:
            if issubclass(base, nn.Module) and not base.__module__.startswith("torch."):
                sources[base.__module__] = _source(base)
        for key, value in sorted(vars(module).items()):
            if not key.startswith("_") and key != "training":
                digest.update(f"\n{key}=".encode())
                _add_value(digest, value)
    for source in sorted(sources.items()):
        digest.update(repr(source).encode())
    return digest.hexdigest()


def data_fingerprint(examples: Examples) -> str:
    """A fingerprint of all inputs and labels in their order."""
    digest = hashlib.blake2b(digest_size=8)
    for positions in torch.split(torch.arange(len(examples.labels)), CHUNK):
        x, y = examples.take(positions, torch.device("cpu"))
        _add(digest, "x", x)
        _add(digest, "y", y)
    return digest.hexdigest()


def fingerprint_of(
    model: nn.Module,
    examples: Examples,
    threat: Threat,
    *,
    seed: int,
    batch_size: int,
    network: Mapping[str, Any] | None = None,
) -> Fingerprint:
    """Everything that the predictions under a given attack and radius depend on."""
    return {
        "weights": weights_fingerprint(model),
        "network": network_fingerprint(model, network),
        "data": data_fingerprint(examples),
        "sora": sora.__version__,
        "box": None if threat.box is None else list(threat.box),
        "seed": seed,
        "batch_size": batch_size,
    }


def state_name(fingerprint: Fingerprint, threat: Threat) -> str:
    """The name under which finished units of an evaluation are stored."""
    text = json.dumps([fingerprint, threat.norm, threat.eps], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _of_tensors(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(tensors.items()):
        _add(digest, name, tensor)
    return digest.hexdigest()


def _add(digest: hashlib.blake2b, name: str, tensor: Tensor) -> None:
    digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
    digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())


def _add_value(digest: hashlib.blake2b, value: object) -> None:
    """Add an attribute of a module: its value where that is plain, the code of a function, else its type."""
    if isinstance(value, Tensor):
        _add(digest, "", value)
    elif isinstance(value, (bool, int, float, complex, str, bytes, torch.dtype, torch.Size, type(None))):
        digest.update(repr(value).encode())
    elif isinstance(value, Mapping):
        for key, item in value.items():
            digest.update(repr(key).encode())
            _add_value(digest, item)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in _ordered(value):
            _add_value(digest, item)
    elif isinstance(value, (types.FunctionType, types.MethodType)):
        digest.update(f"{value.__module__}.{value.__qualname__} {_code(value.__code__)}".encode())
        for cell in value.__closure__ or ():
            _add_value(digest, cell.cell_contents)
    else:
        digest.update(f"{type(value).__module__}.{type(value).__qualname__}".encode())


def _ordered(values: Iterable[Any]) -> Iterable[Any]:
    return sorted(values, key=repr) if isinstance(values, (set, frozenset)) else values


def _code(code: types.CodeType) -> str:
    """The instructions and constants of a function and of those inside it, without memory addresses."""
    constants = [_code(each) if isinstance(each, types.CodeType) else repr(each) for each in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {constants}"


def _source(kind: type[nn.Module]) -> str:
    """The text of the file that defines a class: helpers beside the class decide its results as well."""
    try:
        return inspect.getsource(sys.modules[kind.__module__])
    except (KeyError, OSError, TypeError):  # defined in a notebook or at a prompt
        return _code(kind.forward.__code__) if hasattr(kind.forward, "__code__") else ""


def _is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)
