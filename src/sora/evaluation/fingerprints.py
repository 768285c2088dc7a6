"""Fingerprints of networks, weights, examples and evaluations: equal fingerprints mean equal results."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import sora
from sora._passes import bare
from sora.evaluation._values import NetworkDigest, add_tensor
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

    Covers its description (name, width, options), the class, source text, attributes and hooks of every
    module, and so also a function of the user's own: two networks may have the same weights and differ in
    code or in an option alone. A network with an attribute that cannot be hashed has a new one every time.
    """
    digest = hashlib.blake2b(digest_size=8)
    digest.update(json.dumps(description or {}, sort_keys=True, default=str).encode())
    parts = NetworkDigest(digest)
    try:
        parts.add_network(model)
    except RecursionError:  # an attribute refers to a very long chain of objects
        digest.update(uuid.uuid4().bytes)
    parts.add_sources()
    return digest.hexdigest()


def data_fingerprint(examples: Examples) -> str:
    """A fingerprint of all inputs and labels in their order."""
    digest = hashlib.blake2b(digest_size=8)
    for positions in torch.split(torch.arange(len(examples.labels)), CHUNK):
        x, y = examples.take(positions, torch.device("cpu"))
        add_tensor(digest, "x", x)
        add_tensor(digest, "y", y)
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
    model = bare(model)
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
        add_tensor(digest, name, tensor)
    return digest.hexdigest()


def _is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)
