"""Writing files so that a reader, or a kill at any moment, never meets half of one."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from sora.errors import RunError


def _replace(path: Path, write: Callable[[Path], None]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # no other process uses this name
    temporary.unlink(missing_ok=True)  # a link left there would be followed
    try:
        write(temporary)
        with temporary.open("rb") as handle:
            os.fsync(handle.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """Create a folder of a run unless it is there; a link to elsewhere is refused."""
    refuse_link(path)
    path.mkdir(parents=True, exist_ok=True)


def refuse_link(path: Path) -> None:
    """Raise for a symbolic link or special file in a run folder: a run writes only inside its folder."""
    if path.is_symlink() or not (path.is_file() or path.is_dir() or not path.exists()):
        raise RunError(f"{path} is a link or a special file, which is not written to; remove it")


def write_text(path: Path, text: str) -> None:
    """Write and rename."""

    def write(temporary: Path) -> None:
        temporary.write_text(text)

    _replace(path, write)


def write_json(path: Path, value: Any) -> None:
    """Write and rename; NaN and infinity become null."""
    write_text(path, json.dumps(plain(value), indent=2, allow_nan=False) + "\n")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file and rename it."""
    contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}

    def write(temporary: Path) -> None:
        try:
            save_file(contiguous, temporary, dict(metadata))
        except SafetensorError as error:  # a full disk, for example
            raise RunError(f"cannot write {path}: {error}") from None

    _replace(path, write)


def plain(value: Any) -> Any:
    """A value as JSON can hold it: a number that does not exist is null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value
