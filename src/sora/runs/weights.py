"""Weights from any file: safetensors or a state dict that torch saved, also under the names of a wrapper."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from sora._reading import open_regular
from sora.errors import RunError, UserError
from sora.runs.tensors import read_verified

PREFIXES = ("module.", "model.", "_orig_mod.")  # of DataParallel, of training frameworks, of torch.compile


def read_weights(path: str | Path, wanted: Collection[str]) -> dict[str, Tensor]:
    """The tensors of a file by name; prefixes are removed where that gives exactly the wanted names.

    Args:
        path: A safetensors file, or what `torch.save` wrote: a state dict, alone or inside dictionaries.
        wanted: The names that the network has.
    """
    if not Path(path).exists():
        raise UserError(f"weights file {str(path)!r} does not exist")
    open_regular(Path(path)).close()  # raises for a FIFO, which safetensors would wait for
    try:
        candidates = [read_verified(path).tensors]
    except RunError as error:
        if Path(path).suffix == ".safetensors":
            raise UserError(f"{str(path)!r} is not a safetensors file: it {error}") from None
        candidates = _state_dicts(_load_pickle(path))
    if not candidates:
        raise UserError(f"{str(path)!r} holds no state dict; expected a table of tensors by name")
    fitting = (_without_prefixes(candidate, wanted) for candidate in candidates)
    return next((tensors for tensors in fitting if tensors.keys() == set(wanted)), candidates[0])


def _load_pickle(path: str | Path) -> Any:
    """What `torch.save` wrote, if it can be read without running code of the file."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # on a damaged file the restricted unpickler can raise anything
        with Path(path).open("rb") as file:
            in_torch_format = file.read(2) in (b"PK", b"\x80\x02")  # its two formats
        # An operand is a byte of the file that no file of torch.save has there; the rest is refused code.
        refused = isinstance(error, UnpicklingError) and "Unsupported operand" not in str(error)
        if in_torch_format and refused:
            raise UserError(
                f"{str(path)!r} can only be read by running code in it, which is refused; if you trust it,"
                " convert it: torch.save(torch.load(FILE, weights_only=False).state_dict(), NEW_FILE)"
            ) from error
        raise UserError(
            f"{str(path)!r} is damaged, or neither a safetensors file nor from torch.save"
        ) from error


def _state_dicts(content: Any) -> list[dict[str, Tensor]]:
    """All tables of tensors in a file, the outermost first."""
    if not isinstance(content, Mapping):
        return []
    if content and all(isinstance(value, Tensor) for value in content.values()):
        return [{str(name): tensor for name, tensor in content.items()}]
    return [found for value in content.values() for found in _state_dicts(value)]


def _without_prefixes(tensors: dict[str, Tensor], wanted: Collection[str]) -> dict[str, Tensor]:
    """The tensors under the wanted names if removing common prefixes leads there, otherwise unchanged."""
    names = tensors
    while names.keys() != set(wanted):
        prefix = next((p for p in PREFIXES if names and all(name.startswith(p) for name in names)), None)
        if prefix is None:
            return tensors
        names = {name.removeprefix(prefix): tensor for name, tensor in names.items()}
    return names
