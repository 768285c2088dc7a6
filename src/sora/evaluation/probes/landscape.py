"""The loss over the plane of the FGSM direction and a random direction (appendix G of the paper)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from sora._passes import bare, cross_entropy, frozen
from sora.evaluation._examples import Data, examples
from sora.evaluation._progress import steps
from sora.evaluation.probes._plane import axis, pairs, plane
from sora.threat import Threat


def landscape(
    model: nn.Module,
    data: Data,
    threat: Threat,
    *,
    span: float = 2.0,
    points: int = 25,
    seed: int = 0,
    progress: bool = False,
) -> dict[str, Any]:
    """Mean cross-entropy of all given images at each point of the grid, one unit being one perturbation.

    `bump` says how far the loss on the way to FGSM's point climbs above the loss at that point: about 0
    where the loss rises all the way, large after catastrophic overfitting.
    """
    model, found = bare(model), examples(data)
    place = next(model.parameters()).device
    values = axis(span, points)
    with frozen(model), steps("landscape", points**2, progress) as advance:
        x, y = found.take(torch.arange(len(found.labels)), place)
        around = plane(model, x, y, threat, seed)
        with torch.no_grad():
            loss = torch.empty(points, points, device=place)
            for row, column, b, a in pairs(values):
                at = around.at(torch.tensor(a), torch.tensor(b))
                loss[row, column] = cross_entropy(model(at), y)
                advance()
            way = torch.stack([cross_entropy(model(x + a * around.u), y) for a in torch.linspace(0, 1, 17)])
    return {
        "threat": {"norm": threat.norm, "eps": threat.eps},
        "n": len(y),
        "axis": values,
        "loss": loss.tolist(),
        "way": way.tolist(),
        "bump": (way.max() - way[-1]).item(),
    }
