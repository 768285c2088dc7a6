"""The checkpoint files of a run: the newest two, the best one and the last good one.

A checkpoint is a single safetensors file: tensors under flat names, everything else as JSON in its header.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

import sora
from sora._files import make_folder, write_tensors
from sora.errors import RunError

FORMAT = "sora-checkpoint-1"
KEPT = 2  # numbered checkpoints that stay


class Checkpoints:
    """Names, writing, reading and rotation of checkpoint files.

    Args:
        folder: Where they are; created by the first write.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def best(self) -> Path:
        """The checkpoint with the highest robust accuracy on the held-out slice."""
        return self.folder / "best.safetensors"

    @property
    def good(self) -> Path:
        """The last state in which the guard saw nothing wrong; before that, the initial state."""
        return self.folder / "last_good.safetensors"

    def newest_first(self) -> list[Path]:
        """The numbered checkpoints, newest first."""
        return sorted(self.folder.glob("step-*.safetensors"), reverse=True)

    def remove_leftovers(self) -> None:
        """Delete what a kill in the middle of a write left behind."""
        for leftover in self.folder.glob(".*.tmp"):
            leftover.unlink()

    def write(
        self,
        step: int,
        attempt: int,
        tensors: Mapping[str, Tensor],
        header: Mapping[str, Any],
        *,
        best: bool = False,
        good: bool = False,
    ) -> Path:
        """Write a checkpoint, mark it as best or good if asked, and remove the oldest ones."""
        make_folder(self.folder)
        versions = {"sora": sora.__version__, "torch": torch.__version__}
        text = json.dumps({"format": FORMAT, **versions, **header})
        path = self.folder / f"step-{attempt}-{step:08d}.safetensors"
        write_tensors(path, tensors, {"sora": text})
        if best:
            _link(path, self.best)
        if good:
            _link(path, self.good)
        for old in self.newest_first()[KEPT:]:
            old.unlink()
        return path

    def read(self, path: Path, fingerprint: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors and the header of a checkpoint.

        Args:
            path: The file.
            fingerprint: Of the run's settings; a checkpoint of another run is refused.

        Raises:
            RunError: The file is truncated, is not a checkpoint, or belongs to another run.
        """
        try:
            with safe_open(path, framework="pt") as file:
                header = json.loads((file.metadata() or {}).get("sora", "{}"))
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, ValueError) as error:
            raise RunError(f"checkpoint {path.name} cannot be read ({error})") from None
        if header.get("format") != FORMAT:
            raise RunError(f"checkpoint {path.name} was not written by this version of sora")
        if header["fingerprint"] != fingerprint:
            raise RunError(f"checkpoint {path.name} belongs to another run")
        return tensors, header

    def readable(self, fingerprint: str) -> Iterator[tuple[Path, Any]]:
        """Each numbered checkpoint, newest first, with its content or the error that it cannot be read."""
        for path in self.newest_first():
            try:
                yield path, self.read(path, fingerprint)
            except RunError as error:
                yield path, error

    def describe_newest(self) -> str:
        """Which checkpoint one can go back to, in words."""
        found = self.newest_first()
        return f"last good checkpoint: {found[0]}" if found else "no checkpoint had been written yet"


def _link(source: Path, target: Path) -> None:
    """Make `target` another name of `source`, in one step."""
    temporary = target.with_name(f".{target.name}.tmp")
    temporary.unlink(missing_ok=True)
    temporary.hardlink_to(source)
    temporary.replace(target)
