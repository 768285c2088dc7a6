"""The checkpoint files of a run: the newest two, the best one and the last good one; and its snapshots.

A checkpoint is a single safetensors file: tensors under flat names, everything else as JSON in its header,
and a checksum of both. A snapshot holds the weights of one step, for probes.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import sora
from sora._files import link, make_folder
from sora.errors import RunError, UserError
from sora.runs.weights import read_verified, write_verified

FORMAT = "sora-checkpoint-2"
KEPT = 2  # numbered checkpoints that stay

Content = tuple[dict[str, Tensor], dict[str, Any]]


class Checkpoints:
    """Names, writing, reading and rotation of the checkpoint files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.best = folder / "best.safetensors"  # the epoch with the highest score on held-out images
        self.good = folder / "last_good.safetensors"  # in which the guard saw nothing wrong, or the first

    def newest_first(self) -> list[Path]:
        """Return the numbered checkpoints, newest first."""
        return sorted(self.folder.glob("step-*.safetensors"), reverse=True)

    def candidates(self) -> list[Path]:
        """Return all checkpoints a run can continue from, in the order to try; no file under two names."""
        marked = [path for path in (self.best, self.good) if path.exists()]
        marked.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
        different: list[Path] = []
        for path in [*self.newest_first(), *marked]:
            if not any(path.samefile(other) for other in different):
                different.append(path)
        return different

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
        """Write a checkpoint, mark it as best or good if asked, and remove the ones before the last."""
        make_folder(self.folder)
        versions = {"sora": sora.__version__, "torch": torch.__version__}
        marks = [name for name, asked in (("best", best), ("good", good)) if asked]
        text = json.dumps({"format": FORMAT, **versions, **header, "marks": marks})
        path = self.folder / f"step-{attempt}-{step:08d}.safetensors"
        write_verified(path, tensors, text)
        self.link_marks(path, marks)
        # Files with higher numbers belong to no state of this run: unreadable, or of a part that is repeated
        # now. They are replaced when the run gets there.
        for old in [other for other in self.newest_first() if other.name < path.name][KEPT - 1 :]:
            old.unlink()
        return path

    def link_marks(self, path: Path, marks: list[str]) -> None:
        """Give a checkpoint the names it was marked with; done again after a kill between file and name."""
        for target in ({"best": self.best, "good": self.good}[mark] for mark in marks):
            if not (target.exists() and target.samefile(path)):
                link(path, target)

    def read(self, path: Path) -> Content:
        """Read tensors and header; a `RunError` if the file is missing, damaged or not a checkpoint."""
        stored = read_verified(path)
        try:
            header = json.loads(stored.text or "{}")  # NaN is a valid state, of an average for example
        except (ValueError, RecursionError) as error:
            raise RunError(f"cannot be read ({' '.join(str(error).split())})") from None
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise RunError("was not written by this version of sora")
        if not stored.verified:
            raise RunError("is damaged: its checksum is missing")
        return stored.tensors, header

    def describe_newest(self) -> str:
        """Say which checkpoint one can go back to."""
        found = self.newest_first()
        return f"newest checkpoint: {found[0]}" if found else "no checkpoint had been written yet"


class SnapshotFiles:
    """Names, writing and listing of the weights of single steps in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, step: int, attempt: int, tensors: Mapping[str, Tensor]) -> None:
        """Write the weights of a step."""
        make_folder(self.folder)
        write_verified(self.folder / f"step-{step:08d}-{attempt}.safetensors", tensors)

    def files(self) -> dict[int, Path]:
        """Return the file of each step whose weights were kept, in order; of several attempts the last."""
        files = sorted(self.folder.glob("step-*.safetensors"))
        return {int(file.stem.split("-")[1]): file for file in files}

    def file(self, step: int) -> Path:
        """Return the file with the weights of one step."""
        found = self.files()
        if step not in found:
            kept = ", ".join(map(str, found)) or "none"
            raise UserError(f"{self.folder.parent} has no snapshot of step {step}; it has: {kept}")
        return found[step]
