"""The weights of single steps that a run keeps for probes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from sora._files import make_folder
from sora.errors import UserError
from sora.runs.tensors import write_verified


class Snapshots:
    """Names, writing and listing of snapshot files.

    Args:
        folder: Where they are; created by the first write.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, step: int, attempt: int, tensors: Mapping[str, Tensor]) -> None:
        """Keep the weights of a step."""
        make_folder(self.folder)
        write_verified(self.folder / f"step-{step:08d}-{attempt}.safetensors", tensors)

    def files(self) -> dict[int, Path]:
        """The steps whose weights were kept, in order; of several attempts the last one's file."""
        files = sorted(self.folder.glob("step-*.safetensors"))
        return {int(file.stem.split("-")[1]): file for file in files}

    def file(self, step: int) -> Path:
        """The weights of one step."""
        found = self.files()
        if step not in found:
            kept = ", ".join(map(str, found)) or "none"
            raise UserError(f"{self.folder.parent} has no snapshot of step {step}; it has: {kept}")
        return found[step]
