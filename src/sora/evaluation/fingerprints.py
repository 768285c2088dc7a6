"""Fingerprints of weights, examples and whole evaluations: equal fingerprints mean equal results."""

from __future__ import annotations

import hashlib
import json

import torch
from torch import Tensor, nn

from sora.evaluation.examples import Examples
from sora.threat import Threat

CHUNK = 100  # examples in memory at a time


def weights_fingerprint(model: nn.Module) -> str:
    """A fingerprint of all parameters and buffers and their names."""
    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(model.state_dict().items()):
        if isinstance(tensor, Tensor):  # a module may store other objects in its state
            _add(digest, name, tensor)
    return digest.hexdigest()


def data_fingerprint(examples: Examples) -> str:
    """A fingerprint of all inputs and labels in their order."""
    digest = hashlib.blake2b(digest_size=8)
    for positions in torch.split(torch.arange(len(examples.labels)), CHUNK):
        x, y = examples.take(positions, torch.device("cpu"))
        _add(digest, "x", x)
        _add(digest, "y", y)
    return digest.hexdigest()


def evaluation_fingerprint(
    model: nn.Module, examples: Examples, threat: Threat, seed: int, batch_size: int
) -> str:
    """A fingerprint of everything that the predictions under a given attack depend on."""
    weights, data = weights_fingerprint(model), data_fingerprint(examples)
    parts = [weights, data, threat.norm, threat.eps, threat.box, seed, batch_size]
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).hexdigest()


def _add(digest: hashlib.blake2b, name: str, tensor: Tensor) -> None:
    digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
    digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
