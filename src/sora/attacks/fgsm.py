"""FGSM: `x_adv = box(x + eps direction(g))`, one full step from x without a random start."""

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from sora._checks import checking
from sora._passes import bare, fast_order, frozen, gradient_of
from sora._task import PLAIN, Task
from sora.attacks._base import Attack, register
from sora.threat import Threat, parse_eps


def fgsm(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    threat: Threat,
    eps: float | None = None,
    *,
    task: Task = PLAIN,
    channels_last: bool = True,
) -> Tensor:
    """Take one step of length `eps` along the gradient's direction, clamped to the box; no random start.

    Args:
        model: From inputs to logits; attacked in evaluation mode and left unchanged.
        x: Inputs inside the box, shape (B, ...).
        y: Targets of the loss: by default class labels, shape (B,).
        threat: The norm and the box.
        eps: Length of the step instead of the threat's radius; a negative one steps against the gradient.
        task: The loss; by default cross-entropy.
        channels_last: Let images on the CPU pass through the model in channels-last order, which is faster;
            the model and the order of the result stay as they are.
    """
    model = bare(model)
    inputs = fast_order(model, x) if channels_last else x
    with checking(model, x, y, threat, task), frozen(model):
        gradient, _ = gradient_of(lambda output: task.loss_of(output, y), model, inputs)
    return threat.step(x, gradient, threat.eps if eps is None else parse_eps(eps))


@register("fgsm", "one step of length eps along the gradient's direction")
@dataclass(frozen=True)
class FGSM(Attack):
    """One full step."""

    task: Task = PLAIN
    start = "input"
    passes = 2  # the gradient and the prediction

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int = 0) -> Tensor:
        """Take one step along the gradient's direction at `x`."""
        return fgsm(model, x, y, threat, task=self.task)

    def for_task(self, task: Task) -> Attack:
        """Return the same step on another loss."""
        return replace(self, task=task)

    def settings(self, threat: Threat) -> dict[str, Any]:
        """Return one step as long as the radius."""
        return super().settings(threat) | {"steps": 1, "step_size": threat.eps}
