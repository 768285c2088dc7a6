"""Checksums that tell a damaged file from an intact one. They are no protection against forgery."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from sora._files import plain
from sora._reading import open_regular
from sora.errors import RunError

_CHUNK = 1 << 20  # bytes
_CHECKSUM = "blake2b"  # its name in a record
_COMPILED = "_orig_mod"  # where torch.compile keeps the module it wraps
_SIZE = 32  # bytes of a digest; `b2sum -l 256 FILE` prints the same for a file


def new_digest() -> hashlib.blake2b:
    """A new BLAKE2b checksum, the fastest strong one in the standard library."""
    return hashlib.blake2b(digest_size=_SIZE)


_SETTLED = 1_000_000_000  # nanoseconds after which another change gives a file another time stamp
_known_files: dict[Path, tuple[tuple[int, ...], str]] = {}  # what `stat` says, and the checksum
_known_models: WeakKeyDictionary[nn.Module, tuple[object, list[Tensor], str]] = WeakKeyDictionary()


def digest_file(path: Path) -> str:
    """Return the checksum of a file, which is read only once per process unless it changes."""
    info = path.stat()
    state = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
    known, digest = _known_files.get(path, ((), ""))
    if known != state:
        digest = digest_start(path, info.st_size).hexdigest()
        if time.time_ns() - max(info.st_mtime_ns, info.st_ctime_ns) > _SETTLED:
            _known_files[path] = state, digest
    return digest


def digest_model(model: nn.Module, *, again: bool = False) -> str:
    """Return the fingerprint of a model's parameters and buffers, computed only once unless they change.

    Changes are noticed by torch's version counters, which in-place operations increase but edits through
    `tensor.data` do not.

    Args:
        model: The model, which may be wrapped, e.g. in DDP.
        again: Compute it even if no change was noticed, where foreign code may have edited `tensor.data`.
    """
    # A module may store other objects in its state.
    tensors = {name: value for name, value in plain_state(model).items() if isinstance(value, Tensor)}
    state = [(name, t.data_ptr(), t.dtype, t.shape, t.stride(), _version(t)) for name, t in tensors.items()]
    known, _, fingerprint = _known_models.get(model, (None, [], ""))
    if known != state or again:
        digest = hashlib.blake2b(digest_size=8)
        for name, tensor in sorted(tensors.items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(_bytes_of(tensor))
        fingerprint = digest.hexdigest()
        # The tensors are kept so that no others get their addresses.
        _known_models[model] = state, list(tensors.values()), fingerprint
    return fingerprint


def plain_state(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights under the names the bare model gives them, without those of wrappers around it."""
    while isinstance(model, (DataParallel, DistributedDataParallel)):
        model = model.module
    state = model.state_dict()
    return {".".join(part for part in name.split(".") if part != _COMPILED): t for name, t in state.items()}


def _version(tensor: Tensor) -> object:
    """Return the number of in-place changes; inference tensors do not count them and always differ."""
    return object() if tensor.is_inference() else tensor._version


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


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
        digest.update(f"\n{name} {tensors[name].dtype} {tuple(tensors[name].shape)}\n".encode())
        digest.update(_bytes_of(tensors[name]))
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
