"""Attacks by the names that tables, files and flags use, each with its settings spelled out."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sora.attacks._base import Attack
from sora.attacks._gradient import STEP, fgsm, pgd
from sora.attacks.auto import PARTS, AutoAttack, AutoPart
from sora.errors import UserError, unknown
from sora.threat import Threat

NAMES = ("clean", "fgsm", "pgd10", "pgd50x10", "aa", *PARTS)  # pgd with any numbers
PGD_NAME = re.compile(r"pgd([1-9]\d{0,4})(?:x([1-9]\d{0,3}))?")


@dataclass(frozen=True)
class Clean(Attack):
    """No attack."""

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int = 0) -> Tensor:
        """The inputs as they are."""
        return x

    def settings(self, threat: Threat) -> dict[str, Any]:
        """Radius 0, whatever the threat."""
        return super().settings(threat) | {"eps": 0.0}


@dataclass(frozen=True)
class FGSM(Attack):
    """One full step."""

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int = 0) -> Tensor:
        """One step along the gradient at `x`."""
        return fgsm(model, x, y, threat)

    def settings(self, threat: Threat) -> dict[str, Any]:
        """One step as long as the radius."""
        return super().settings(threat) | {"steps": 1, "step_size": threat.eps}

    @property
    def passes(self) -> int:
        """The gradient and the answer."""
        return 2


@dataclass(frozen=True)
class PGD(Attack):
    """Steps of eps/4; an example is robust only if every restart fails on it."""

    steps: int = 10
    restarts: int = 1

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int = 0) -> Tensor:
        """A successful restart's last iterate if there is one."""
        generator = torch.Generator(x.device).manual_seed(seed)
        return pgd(model, x, y, threat, self.steps, restarts=self.restarts, generator=generator)

    def settings(self, threat: Threat) -> dict[str, Any]:
        """Steps of a quarter of the radius."""
        own = {"steps": self.steps, "step_size": STEP * threat.eps, "restarts": self.restarts}
        return super().settings(threat) | own

    @property
    def stream(self) -> int:
        """One for all of PGD: more restarts begin with the same ones, so they can only break more."""
        return zlib.crc32(b"pgd")

    @property
    def passes(self) -> int:
        """Each step and each restart's answer."""
        return self.restarts * (self.steps + 1) + 1


def parse(name: str) -> Attack:
    """The attack of a name: one of `NAMES`, or `pgdK` with K steps, or `pgdKxR` with R restarts as well."""
    name = name.strip().lower()
    if name == "clean":
        return Clean(name)
    if name == "fgsm":
        return FGSM(name)
    if name == "aa":
        return AutoAttack(name)
    if name in PARTS:
        return AutoPart(name)
    if match := PGD_NAME.fullmatch(name):
        return PGD(name, int(match[1]), int(match[2] or 1))
    raise unknown("attack", name, NAMES)


def parse_all(names: str | Iterable[str | Attack]) -> list[Attack]:
    """Several attacks, from a list or from text with commas; each once, in the order given."""
    items = [word for word in names.split(",") if word.strip()] if isinstance(names, str) else names
    attacks = [parse(item) if isinstance(item, str) else item for item in items]
    if not attacks:
        raise UserError(f"no attack was named; allowed: {', '.join(NAMES)}")
    return list({attack.name: attack for attack in attacks}.values())
