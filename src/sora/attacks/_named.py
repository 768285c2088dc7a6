"""Attacks by the names that tables, files and flags use, each with its settings spelled out."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sora.attacks._gradient import STEP, fgsm, pgd
from sora.errors import UserError, unknown
from sora.threat import Threat

NAMES = ("clean", "fgsm", "pgd10", "pgd50x10")
PGD_NAME = re.compile(r"pgd([1-9]\d{0,4})(?:x([1-9]\d{0,3}))?")


@dataclass(frozen=True)
class Attack(ABC):
    """What is done to inputs before a model is judged on them."""

    name: str
    stream: ClassVar[int]  # names its random numbers; attacks that should share them share it

    @abstractmethod
    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int = 0) -> Tensor:
        """The attacked inputs, a function of the arguments alone."""

    def settings(self, threat: Threat) -> dict[str, Any]:
        """What must stand beside an accuracy under this attack."""
        return {"norm": threat.norm, "eps": threat.eps, "steps": 0, "step_size": None, "restarts": 1}


@dataclass(frozen=True)
class Clean(Attack):
    """No attack."""

    stream = 0

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int = 0) -> Tensor:
        """The inputs as they are."""
        return x

    def settings(self, threat: Threat) -> dict[str, Any]:
        """Radius 0, whatever the threat."""
        return super().settings(threat) | {"eps": 0.0}


@dataclass(frozen=True)
class FGSM(Attack):
    """One full step."""

    stream = 1

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int = 0) -> Tensor:
        """One step along the gradient at `x`."""
        return fgsm(model, x, y, threat)

    def settings(self, threat: Threat) -> dict[str, Any]:
        """One step as long as the radius."""
        return super().settings(threat) | {"steps": 1, "step_size": threat.eps}


@dataclass(frozen=True)
class PGD(Attack):
    """Steps of eps/4; an example is robust only if every restart fails on it."""

    steps: int = 10
    restarts: int = 1
    stream = 2

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int = 0) -> Tensor:
        """A successful restart's last iterate if there is one."""
        generator = torch.Generator(x.device).manual_seed(seed)
        return pgd(model, x, y, threat, self.steps, restarts=self.restarts, generator=generator)

    def settings(self, threat: Threat) -> dict[str, Any]:
        """Steps of a quarter of the radius."""
        mine = {"steps": self.steps, "step_size": STEP * threat.eps, "restarts": self.restarts}
        return super().settings(threat) | mine


def parse(name: str) -> Attack:
    """The attack of a name such as `clean`, `fgsm`, `pgd10` (steps) or `pgd50x10` (steps x restarts)."""
    name = name.strip().lower()
    if name == "clean":
        return Clean(name)
    if name == "fgsm":
        return FGSM(name)
    if match := PGD_NAME.fullmatch(name):
        return PGD(name, int(match[1]), int(match[2] or 1))
    raise unknown("attack", name, NAMES)


def parse_all(names: str | tuple[str, ...] | list[str]) -> list[Attack]:
    """Several attacks, from a list or from text with commas; each once, in the order given."""
    words = names.split(",") if isinstance(names, str) else names
    found = {attack.name: attack for attack in map(parse, (word for word in words if word.strip()))}
    if not found:
        raise UserError(f"no attack was named; allowed: {', '.join(NAMES)}")
    return list(found.values())
