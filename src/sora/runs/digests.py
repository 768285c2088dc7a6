"""Checksums that tell a damaged file from an intact one. They are no protection against forgery."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sora._files import plain
from sora._reading import open_regular
from sora.errors import RunError

_CHUNK = 1 << 20  # bytes
_CHECKSUM = "blake2b"  # its name in a record
_SIZE = 32  # bytes of a digest; `b2sum -l 256 FILE` prints the same for a file


def new_digest() -> hashlib.blake2b:
    """A new BLAKE2b checksum, the fastest strong one in the standard library."""
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


def with_checksum(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record for a JSON file, with a checksum of what it says."""
    record = plain(record)
    return {**record, _CHECKSUM: _digest_record(record)}


def without_checksum(record: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The inverse of `with_checksum`; records of older versions have none.

    Raises:
        RunError: The record is not as it was written.
    """
    content = {name: value for name, value in record.items() if name != _CHECKSUM}
    if _CHECKSUM in record and record[_CHECKSUM] != _digest_record(content):
        raise RunError(
            f"{path} is damaged: a record does not match its checksum; move it away to start a new one"
        )
    return content


def _digest_record(record: Mapping[str, Any]) -> str:
    digest = new_digest()
    digest.update(json.dumps(record, sort_keys=True).encode())
    return digest.hexdigest()
