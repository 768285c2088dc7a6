"""Tensors in a safetensors file that carries a checksum of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sora._files import replace_file
from sora.errors import RunError
from sora.runs.digests import digest_tensors

_KEY = "sora"  # one key only: safetensors writes several in an arbitrary order
_MARK = "blake2b:"


class Stored(NamedTuple):
    """What a file holds: its tensors by name, the text stored with them, and whether both were verified."""

    tensors: dict[str, Tensor]
    text: str
    verified: bool


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file under a temporary name, then rename it."""
    contiguous, places = dict[str, Tensor](), set[int]()
    for name, tensor in tensors.items():
        kept = tensor.detach().contiguous()
        place = kept.untyped_storage().data_ptr()
        # The format has no shared memory: what two names have in common is written twice.
        contiguous[name] = kept.clone() if place in places else kept
        places.add(place)

    def write(temporary: Path) -> None:
        try:
            save_file(contiguous, temporary, dict(metadata))
        except SafetensorError as error:  # a full disk, for example
            raise RunError(f"cannot write {path}: {error}") from None

    replace_file(path, write)


def write_verified(path: Path, tensors: Mapping[str, Tensor], text: str = "") -> None:
    """Write tensors, a text that belongs to them, and the checksum of both."""
    write_tensors(path, tensors, {_KEY: f"{_MARK}{digest_tensors(tensors, text)} {text}"})


def read_verified(path: str | Path) -> Stored:
    """The content of a safetensors file; one without a checksum, of other origin, is not verified.

    Raises:
        RunError: The file is missing, is not a safetensors file, or does not match its checksum.
    """
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(_KEY, "")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RuntimeError, MemoryError) as error:
        # A damaged header can ask for more memory than there is.
        raise RunError(f"cannot be read ({' '.join(str(error).split())})") from None
    if not text.startswith(_MARK):
        return Stored(tensors, text, verified=False)
    digest, _, text = text.removeprefix(_MARK).partition(" ")
    if digest != digest_tensors(tensors, text):
        raise RunError("is damaged: its checksum is wrong")
    return Stored(tensors, text, verified=True)
