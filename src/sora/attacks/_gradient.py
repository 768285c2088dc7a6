"""FGSM and PGD as they judge a model: evaluation mode, one ball and box, no clamp behind the leaf."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from sora._checks import check_inputs
from sora._modes import frozen
from sora._passes import bare, cross_entropy, input_gradient
from sora.errors import UserError
from sora.threat import Threat

STEP = 0.25  # PGD's step in multiples of eps: 2/255 at 8/255

Select = Literal["any", "max_loss"]


def fgsm(model: nn.Module, x: Tensor, y: Tensor, threat: Threat, eps: float | None = None) -> Tensor:
    """One step of length `eps` along the gradient's direction, then into the box; no random start.

    Args:
        model: From inputs to logits; attacked in evaluation mode and left as it was.
        x: Inputs inside the box, shape (B, ...).
        y: Class labels, shape (B,).
        threat: The norm and the box.
        eps: Length of the step in place of the threat's radius; a negative one goes against the gradient.
    """
    check_inputs(x, y, threat)
    with frozen(bare(model)):
        gradient, _ = input_gradient(bare(model), x, y)
    return threat.clamp(x + threat.direction(gradient) * (threat.eps if eps is None else eps))


def pgd(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    threat: Threat,
    steps: int = 10,
    step_size: float | None = None,
    restarts: int = 1,
    select: Select = "any",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Projected gradient ascent from random starts; each example's best last iterate.

    Args:
        model: From inputs to logits; attacked in evaluation mode and left as it was.
        x: Inputs inside the box, shape (B, ...).
        y: Class labels, shape (B,).
        threat: The norm ball and the box.
        steps: Ascent steps a restart.
        step_size: Length of a step in the units of the input; eps/4 if not given.
        restarts: Independent random starts. The first one does not depend on how many there are.
        select: `"any"` returns an input that changes the prediction if any restart found one;
            `"max_loss"` the restart of highest loss, as some published numbers were made.
        generator: Source of the random starts, on the device of `x`; torch's own if not given.
    """
    check_inputs(x, y, threat)
    if steps < 1 or restarts < 1:
        raise UserError(f"pgd with {steps} steps and {restarts} restarts; both are 1 or more")
    length = STEP * threat.eps if step_size is None else step_size
    model = bare(model)
    with frozen(model):
        best, score = _ascend(model, x, y, threat, steps, length, select, generator)
        for _ in range(restarts - 1):
            noise = threat.random_start(x, generator)
            # Restarts after a success cannot change it: they look at the other examples only.
            rest = (score <= 0).nonzero()[:, 0] if select == "any" else torch.arange(len(x), device=x.device)
            if len(rest) == 0:
                break
            found, new = _ascend(model, x[rest], y[rest], threat, steps, length, select, noise=noise[rest])
            better = new > score[rest]
            best[rest[better]], score[rest[better]] = found[better], new[better]
    return best


def _ascend(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    threat: Threat,
    steps: int,
    length: float,
    select: Select,
    generator: torch.Generator | None = None,
    noise: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The last iterate of one restart and its score: 1 for a success, or the loss."""
    at = threat.clamp(x + (threat.random_start(x, generator) if noise is None else noise))
    for _ in range(steps):
        gradient, _ = input_gradient(model, at, y)
        at = threat.ascend(x, at, gradient, length)
    with torch.no_grad():
        logits = model(at)
        score = (logits.argmax(1) != y).float() if select == "any" else cross_entropy(logits, y, "none")
    return at, score
