"""What an attack is: a name, its settings, and a function from inputs to attacked inputs."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from sora.threat import Threat


@dataclass(frozen=True)
class Attack(ABC):
    """What is done to inputs before a model is judged on them."""

    name: str

    @abstractmethod
    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int = 0) -> Tensor:
        """The attacked inputs, a function of the arguments alone."""

    def settings(self, threat: Threat) -> dict[str, Any]:
        """What must stand beside an accuracy under this attack."""
        return {"norm": threat.norm, "eps": threat.eps, "steps": 0, "step_size": None, "restarts": 1}

    @property
    def stream(self) -> int:
        """Names its random numbers; attacks that should share them share it."""
        return zlib.crc32(self.name.encode())

    @property
    def parts(self) -> tuple[Attack, ...]:
        """Attacks run one after the other on what is still rightly classified; empty: this one, on all."""
        return ()

    @property
    def passes(self) -> int:
        """Roughly how often it asks the model about each example, for the time that is left."""
        return 1

    def for_classes(self, num_classes: int) -> Attack:
        """The same attack fitted to a number of classes."""
        return self
