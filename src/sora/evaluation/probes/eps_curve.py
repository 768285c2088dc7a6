"""Accuracy as a function of the test radius: epsilon overfitting made visible (section 3 of the paper)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sora._passes import bare, frozen, input_gradient
from sora._seeds import mix
from sora.attacks import pgd
from sora.evaluation._accuracy import BATCH
from sora.evaluation._examples import Data, examples
from sora.evaluation._progress import steps
from sora.threat import Threat

LOW, HIGH, PER_EPS = -2, 4, 8  # from -2 eps to 4 eps in steps of eps/8


class Rise(NamedTuple):
    """How much a sequence climbs at most, and from which position to which."""

    size: float
    start: int
    end: int


def largest_rise(values: Sequence[float]) -> Rise:
    """The largest `values[j] - values[i]` with `i <= j`: 0 for a sequence that never rises."""
    lowest, best = 0, Rise(0.0, 0, 0)
    for position, value in enumerate(values):
        if value < values[lowest]:
            lowest = position
        best = max(best, Rise(value - values[lowest], lowest, position), key=lambda rise: rise.size)
    return best


def eps_curve(
    model: nn.Module,
    data: Data,
    threat: Threat,
    *,
    batch_size: int = BATCH,
    seed: int = 0,
    progress: bool = False,
) -> dict[str, Any]:
    """FGSM accuracy from -2 eps to 4 eps (a negative step goes against the gradient) and PGD-10's from 0 on.

    The index of epsilon overfitting is the largest rise of FGSM accuracy as the step grows from 0: a larger
    step can only help an honest attacker, so a robust model's curve does not rise.
    """
    multiples = [k / PER_EPS for k in range(LOW * PER_EPS, HIGH * PER_EPS + 1)]
    model, found = bare(model), examples(data)
    place = next(model.parameters()).device
    hits: dict[str, list[Tensor | int]] = {name: [0] * len(multiples) for name in ("fgsm", "pgd10")}
    batches = torch.split(torch.arange(len(found.labels)), batch_size)
    attacked = len(batches) * (HIGH * PER_EPS + 1)  # PGD takes the time, FGSM's one direction next to none
    with frozen(model), steps("eps-curve", attacked, progress) as advance:
        for number, rows in enumerate(batches):
            x, y = found.take(rows, place)
            direction = threat.direction(input_gradient(model, x, y)[0])  # of all radii alike
            for position, multiple in enumerate(multiples):
                fgsm = threat.clamp(x + direction * (multiple * threat.eps))
                hits["fgsm"][position] += _right(model, fgsm, y)
                if multiple >= 0:
                    noise = torch.Generator(x.device).manual_seed(mix(seed, number))
                    strong = pgd(model, x, y, threat.scaled(multiple), generator=noise)
                    hits["pgd10"][position] += _right(model, strong, y)
                    advance()
    n = len(found.labels)
    fgsm_curve = [int(count) / n for count in hits["fgsm"]]
    zero = -LOW * PER_EPS
    rise = largest_rise(fgsm_curve[zero:])
    return {
        "threat": {"norm": threat.norm, "eps": threat.eps},
        "n": n,
        "multiples": multiples,
        "fgsm": fgsm_curve,
        "pgd10": [int(c) / n if m >= 0 else None for c, m in zip(hits["pgd10"], multiples, strict=True)],
        "index": rise.size,
        "rise": {"from": multiples[zero + rise.start], "to": multiples[zero + rise.end]},
        "index_all": largest_rise(fgsm_curve).size,
    }


def _right(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(x)
    return (logits.argmax(1) == y).sum()
