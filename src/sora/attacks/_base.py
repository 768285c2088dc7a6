"""What an attack is: a name, its settings, and a function from inputs to attacked inputs."""

from __future__ import annotations

import re
import zlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from sora._registry import Entry, Registry
from sora._task import Task
from sora.threat import Threat


@dataclass(frozen=True)
class Attack(ABC):
    """What is done to inputs before a model's accuracy on them is measured.

    Args:
        name: As in tables, files and flags, e.g. `"pgd50x10"`.
    """

    name: str

    # Where it begins, stated with every result: `input`, or `random` for a point that a seed draws.
    start: ClassVar[str] = ""
    # Installed packages, besides this one and torch, whose code it runs; their versions are recorded.
    packages: ClassVar[tuple[str, ...]] = ()
    slow: ClassVar[bool] = False  # whether it takes too long to be repeated while a model trains

    @abstractmethod
    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int = 0) -> Tensor:
        """Return the attacked inputs, a function of the arguments alone."""

    def settings(self, threat: Threat) -> dict[str, Any]:
        """Return what is stored next to an accuracy under this attack."""
        return {"norm": threat.norm, "eps": threat.eps, "steps": 0, "step_size": None, "restarts": 1}

    @property
    def stream(self) -> int:
        """Identifies its random numbers; attacks that should draw the same ones share it."""
        return zlib.crc32(self.name.encode())

    @property
    def parts(self) -> tuple[Attack, ...]:
        """Attacks run in turn on the examples still correctly classified; if empty, this one runs on all."""
        return ()

    @property
    def passes(self) -> int:
        """Approximate number of passes per example, to estimate the remaining time."""
        return 1

    def check(self, x: Tensor, y: Tensor, threat: Threat) -> None:
        """Raise if it cannot attack such inputs: called with the first batch, before any attack is run."""
        for part in self.parts:
            if part is not self:
                part.check(x, y, threat)

    def for_classes(self, num_classes: int) -> Attack:
        """Return the same attack adapted to a number of classes."""
        return self

    def for_task(self, task: Task) -> Attack:
        """Return the same attack on the loss of a task; one that does not know tasks needs classes."""
        task.refuse(self.name)
        return self


@dataclass(frozen=True)
class AttackInfo(Entry):
    """An attack, or a family of attacks such as `pgd10` and `pgd50x10`."""

    cls: type[Attack]
    pattern: str = ""  # of a family's names; its named groups are integers, arguments of the class
    examples: tuple[str, ...] = ()  # names of such a family to show in lists
    usage: str = ""  # how a name of the family is written, e.g. `pgdK`

    def matches(self, name: str) -> bool:
        """Tell whether `name` is this attack, its family or a member of it."""
        return name == self.name or self._parsed(name) is not None

    @property
    def shown(self) -> tuple[str, ...]:
        """The names to list: of a family, some examples."""
        return self.examples or (self.name,)

    @property
    def suggested(self) -> tuple[str, ...]:
        """The names to suggest: also how a name of the family is written."""
        return (*self.shown, self.usage) if self.usage else self.shown

    def build(self, name: str) -> Attack | None:
        """Return the attack of that name; None for the name of a family."""
        match = self._parsed(name)
        if match is None:
            return None
        numbers = {key: int(value) for key, value in match.groupdict().items() if value is not None}
        return self.cls(name, **numbers)

    def _parsed(self, name: str) -> re.Match[str] | None:
        return re.fullmatch(self.pattern or re.escape(self.name), name)


ATTACKS = Registry("attack", "sora.attacks", AttackInfo, order=("clean", "fgsm", "pgd", "autoattack"))
register, names, info = ATTACKS.register, ATTACKS.names, ATTACKS.info
