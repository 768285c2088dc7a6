"""Checksums that tell a damaged file from an intact one. They are no protection against forgery."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from sora._reading import open_regular

_CHUNK = 1 << 20  # bytes
_SIZE = 32  # bytes of a digest; `b2sum -l 256 FILE` prints the same for a file


def new_digest() -> hashlib.blake2b:
    """A checksum of nothing yet: the fastest one of the standard library that is strong."""
    return hashlib.blake2b(digest_size=_SIZE)


def digest_file(path: Path) -> str:
    """The checksum of a whole file."""
    return digest_start(path, path.stat().st_size).hexdigest()


def digest_start(path: Path, length: int) -> hashlib.blake2b:
    """The checksum of the first `length` bytes of a file, to which more bytes can be added."""
    digest = new_digest()
    with open_regular(path) as file:
        while length > 0 and (chunk := file.read(min(length, _CHUNK))):
            digest.update(chunk)
            length -= len(chunk)
    return digest


def digest_tensors(tensors: Mapping[str, Tensor], text: str) -> str:
    """The checksum of named tensors, independent of their order, and of a text that belongs to them."""
    digest = new_digest()
    digest.update(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
