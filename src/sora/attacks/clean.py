"""No attack: accuracy on the inputs themselves."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from sora._task import Task
from sora.attacks._base import Attack, register
from sora.threat import Threat


@register("clean", "no attack")
@dataclass(frozen=True)
class Clean(Attack):
    """The identity."""

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int = 0) -> Tensor:
        """Return the inputs, unchanged."""
        return x

    def for_task(self, task: Task) -> Attack:
        """Return itself: it uses no loss."""
        return self

    def settings(self, threat: Threat) -> dict[str, Any]:
        """Return a radius of 0, whatever the threat."""
        return super().settings(threat) | {"eps": 0.0}
