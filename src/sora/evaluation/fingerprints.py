"""Fingerprints of networks, weights, examples, attacks and evaluations: equal ones mean equal results."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import fields
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import sora
from sora._passes import bare
from sora.attacks import Attack
from sora.evaluation._values import NetworkDigest, add_tensor, source_of
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


def identity_of(attack: Attack, threat: Threat) -> str:
    """A hash of what an attack does, since an attack of the same name may have been edited.

    Covers its settings, fields and parts, the versions of the packages it runs, and for a class defined
    outside this package the source text of its module.
    """
    digest = hashlib.blake2b(digest_size=8)
    kinds = [kind for kind in type(attack).__mro__ if issubclass(kind, Attack)]
    own = [kind for kind in kinds if kind.__module__.partition(".")[0] != "sora"]
    versions = [metadata.version(package) for package in attack.packages]
    values = [getattr(attack, field.name) for field in fields(attack)]
    inside = [each for each in (*values, *attack.parts) if isinstance(each, Attack) and each is not attack]
    for value in (
        [(kind.__module__, kind.__qualname__) for kind in kinds],
        [source_of(kind) for kind in own],
        versions,
        attack.settings(threat),
        [value for value in values if not isinstance(value, Attack)],
        [identity_of(each, threat) for each in inside],
    ):
        NetworkDigest(digest).add(value)
    return digest.hexdigest()


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
