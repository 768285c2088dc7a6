"""All that changes while a run trains, and its way into one safetensors file and back."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

import sora
from sora._files import write_tensors
from sora.errors import RunError
from sora.methods import Method
from sora.training.guard import Guard

FORMAT = "sora-checkpoint-1"
RECENT = 50  # steps whose mean PertAlign the summary calls `last`


@dataclass
class State:
    """Everything a killed run needs to go on as if nothing had happened."""

    model: nn.Module
    optimizer: Optimizer
    method: Method
    ema: AveragedModel | None
    scaler: GradScaler = field(default_factory=lambda: GradScaler("cpu", enabled=False))
    guard: Guard = field(default_factory=Guard)
    steps_per_epoch: int = 1
    step: int = 0
    attempt: int = 0
    pending: list[dict[str, float]] = field(default_factory=list)  # steps not yet in metrics.jsonl
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    events: list[dict[str, Any]] = field(default_factory=list)
    best: float = -1.0
    warmup: float = 0.0  # epochs over which eps grows, after a restart from the initial weights
    skipped: int = 0
    seconds: float = 0.0
    images: int = 0

    def place(self, step: int | None = None) -> dict[str, int]:
        """Where a step is in the run, for a line of a log; now, if none is given."""
        step = self.step if step is None else step
        return {"step": step, "epoch": (step - 1) // self.steps_per_epoch + 1, "attempt": self.attempt}

    @property
    def epoch_ends(self) -> bool:
        """Whether the step just taken was its epoch's last."""
        return self.step % self.steps_per_epoch == 0

    @property
    def evaluated(self) -> nn.Module:
        """The weights that are judged and handed over."""
        return self.model if self.ema is None else self.ema.module

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the run under one flat name."""
        found = _prefixed("model", self.model.state_dict()) | _prefixed("method", self.method.state_dict())
        if self.ema is not None:
            found |= _prefixed("ema", self.ema.state_dict())
        for index, slots in self.optimizer.state_dict()["state"].items():
            found |= _prefixed(f"optimizer.{index}", {k: v for k, v in slots.items() if v is not None})
        return found

    def header(self) -> dict[str, Any]:
        """Everything else, as plain numbers."""
        return {
            "guard": self.guard.state_dict(),
            "scaler": self.scaler.state_dict(),
            "recent": list(self.recent),
            **{name: getattr(self, name) for name in _PLAIN},
        }

    def restore(self, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
        """The inverse of `tensors` and `header`; tensors keep the memory format they have here."""
        self.model.load_state_dict(_under("model", tensors))
        self.method.load_state_dict(_under("method", tensors))
        if self.ema is not None:
            self.ema.load_state_dict(_under("ema", tensors))
        self._restore_optimizer(_under("optimizer", tensors))
        self.guard.load_state_dict(header["guard"])
        if self.scaler.is_enabled():
            self.scaler.load_state_dict(header["scaler"])
        self.recent = deque(header["recent"], maxlen=RECENT)
        for name in _PLAIN:
            setattr(self, name, header[name])

    def _restore_optimizer(self, tensors: dict[str, Tensor]) -> None:
        self.optimizer.state.clear()
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        for name, tensor in tensors.items():
            index, slot = name.split(".", 1)
            parameter = parameters[int(index)]
            # Momentum keeps its parameter's memory format, so that a resumed step runs the same kernels.
            like = parameter if tensor.shape == parameter.shape else tensor
            self.optimizer.state[parameter][slot] = torch.empty_like(like).copy_(tensor)

    def finite(self) -> bool:
        """Whether all weights are numbers."""
        return all(bool(p.isfinite().all()) for p in self.model.parameters())


_PLAIN = ("step", "attempt", "pending", "events", "best", "warmup", "skipped", "seconds", "images")


def _prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix(f"{prefix}."): t for n, t in tensors.items() if n.startswith(f"{prefix}.")}


class Checkpoints:
    """The checkpoint files of a run: the newest two, the best one, the last good one."""

    def __init__(self, folder: Path, fingerprint: str, writes: bool = True) -> None:
        self.folder = folder
        self.fingerprint = fingerprint  # of the settings, so that another run's file is not taken for ours
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(".*.tmp") if writes else ():  # from a kill in the middle of a write
            leftover.unlink()

    @property
    def best(self) -> Path:
        """The checkpoint with the highest robust accuracy on the held-out slice."""
        return self.folder / "best.safetensors"

    @property
    def good(self) -> Path:
        """The last checkpoint of a time when the guard saw nothing wrong; before that, the initial state."""
        return self.folder / "last_good.safetensors"

    def newest_first(self) -> list[Path]:
        """The numbered checkpoints, newest first."""
        return sorted(self.folder.glob("step-*.safetensors"), reverse=True)

    def save(self, state: State, logs: dict[str, int], *, best: bool = False, good: bool = False) -> Path:
        """Write the state; mark it as the best or as good; keep only the newest two numbered files."""
        if not state.finite():
            raise RunError(f"weights are not finite at step {state.step}; {self.describe_last()}")
        versions = {"sora": sora.__version__, "torch": torch.__version__}
        header: dict[str, Any] = {"format": FORMAT, "fingerprint": self.fingerprint, "logs": logs}
        header |= versions | state.header()
        path = self.folder / f"step-{state.attempt}-{state.step:08d}.safetensors"
        write_tensors(path, state.tensors(), {"sora": json.dumps(header)})
        if best:
            _link(path, self.best)
        if good:
            _link(path, self.good)
        for old in self.newest_first()[2:]:
            old.unlink()
        return path

    def load(self, path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors and the header of a checkpoint of this run.

        Raises:
            RunError: The file is cut short, is no checkpoint, or belongs to another run.
        """
        try:
            with safe_open(path, framework="pt") as file:
                header = json.loads((file.metadata() or {}).get("sora", "{}"))
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, ValueError) as error:
            raise RunError(f"checkpoint {path.name} cannot be read ({error})") from None
        if header.get("format") != FORMAT:
            raise RunError(f"checkpoint {path.name} was not written by this version of sora")
        if header["fingerprint"] != self.fingerprint:
            raise RunError(f"checkpoint {path.name} belongs to another run")
        return tensors, header

    def restore_newest(self, state: State, warn: Callable[[str], None]) -> dict[str, int]:
        """Put the newest checkpoint that can be read into `state`; return how long its logs were."""
        for path in self.newest_first():
            try:
                tensors, header = self.load(path)
            except RunError as error:
                warn(f"{error}; falling back to an older one")
                continue
            state.restore(tensors, header)
            return dict(header["logs"])
        return {}

    def describe_last(self) -> str:
        """Which checkpoint one can go back to, in words."""
        found = self.newest_first()
        return f"last good checkpoint: {found[0]}" if found else "no checkpoint had been written yet"


def _link(source: Path, target: Path) -> None:
    """Make `target` another name of `source`, in one step."""
    temporary = target.with_name(f".{target.name}.tmp")
    temporary.unlink(missing_ok=True)
    temporary.hardlink_to(source)
    temporary.replace(target)


def mean(values: list[float]) -> float:
    """Mean of the numbers that exist, NaN when none does."""
    real = [value for value in values if not math.isnan(value)]
    return sum(real) / len(real) if real else math.nan
