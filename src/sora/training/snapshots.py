"""Weights kept for probes: of every epoch, and of the log steps before, at and after a word of the guard."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from sora._files import write_tensors
from sora.training.run import plain_state
from sora.training.state import State


class Snapshots:
    """The weight-only files of one run.

    What was before an alarm is known only afterwards, so the weights of the last log step stay in memory.

    Args:
        folder: Where the files go.
        active: Whether any are kept.
    """

    def __init__(self, folder: Path, active: bool) -> None:
        self.folder, self.active = folder, active
        self._before: tuple[Path, dict[str, Tensor]] | None = None
        self._turned = False  # the guard spoke at this log step
        self._after = False  # it spoke at the one before

    def turned(self) -> None:
        """Told when the guard rings or calls off."""
        self._turned = True

    def logged(self, state: State) -> None:
        """Told at each log step, after the guard has heard it."""
        if not self.active:
            return
        if self._turned and self._before is not None:
            self._write(*self._before)
        if self._turned or self._after:
            self.write(state)
        self._turned, self._after = False, self._turned
        weights = {name: tensor.clone() for name, tensor in plain_state(state.evaluated).items()}
        self._before = self._path(state), weights

    def returned(self) -> None:
        """Told when the run goes back: its next steps do not follow from the last ones."""
        self._before, self._after = None, False

    def write(self, state: State) -> None:
        """Keep the weights of this moment."""
        if self.active:
            self._write(self._path(state), plain_state(state.evaluated))

    def _write(self, path: Path, weights: dict[str, Tensor]) -> None:
        self.folder.mkdir(exist_ok=True)
        write_tensors(path, weights, {"format": "pt"})

    def _path(self, state: State) -> Path:
        return self.folder / f"step-{state.step:08d}-{state.attempt}.safetensors"
