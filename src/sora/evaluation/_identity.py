"""What an evaluation is an evaluation of: fingerprints of weights and examples."""

from __future__ import annotations

import hashlib
import json

import torch
from torch import Tensor, nn

from sora.evaluation._examples import Examples
from sora.threat import Threat

CHUNK = 100


def weights_digest(model: nn.Module) -> str:
    """A fingerprint of all parameters and buffers and their names."""
    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(model.state_dict().items()):
        if isinstance(tensor, Tensor):  # a module may keep other things in its state
            _feed(digest, name, tensor)
    return digest.hexdigest()


def data_digest(examples: Examples) -> str:
    """A fingerprint of all inputs and labels in their order."""
    digest = hashlib.blake2b(digest_size=8)
    for positions in torch.split(torch.arange(len(examples.labels)), CHUNK):
        x, y = examples.take(positions, torch.device("cpu"))
        _feed(digest, "x", x)
        _feed(digest, "y", y)
    return digest.hexdigest()


def identity(model: nn.Module, examples: Examples, threat: Threat, seed: int, batch_size: int) -> str:
    """A name for everything that the predictions under a named attack depend on."""
    settings = [weights_digest(model), data_digest(examples), threat.norm, threat.eps, threat.box, seed]
    return hashlib.blake2b(json.dumps([*settings, batch_size]).encode(), digest_size=8).hexdigest()


def _feed(digest: hashlib.blake2b, name: str, tensor: Tensor) -> None:
    digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
    digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
