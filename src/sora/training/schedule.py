"""Learning rate, momentum and eps as functions of the update's number: nothing to save, nothing to step."""

from __future__ import annotations

import math

from torch.optim import Optimizer

from sora.settings.fields import OptimisationSettings, ThreatSettings


def learning_rate(settings: OptimisationSettings, update: int, total: int) -> float:
    """The rate of update `update` (from 0) of `total`.

    Cyclic: linear from `lr_min` up to `lr` over the first half, linear down over the rest. Cosine: from
    `lr` to `lr_min`. Multistep: a tenth at each milestone.
    """
    high, low = settings.lr, settings.lr_min
    if settings.schedule == "cosine":
        return low + (high - low) * 0.5 * (1 + math.cos(math.pi * update / total))
    if settings.schedule == "multistep":
        return high * 0.1 ** sum(update >= milestone * total for milestone in settings.milestones)
    return low + (high - low) * _triangle(update, total)


def rate_drops(settings: OptimisationSettings) -> tuple[float, ...]:
    """The epochs after which the rate drops at once."""
    multistep = settings.schedule == "multistep"
    # Rounded, as a fraction such as 100/110 of 110 epochs is not exactly 100.
    return tuple(round(m * settings.epochs, 6) for m in settings.milestones) if multistep else ()


def momentum(settings: OptimisationSettings, update: int, total: int) -> float:
    """Constant, or with `cycle_momentum` 0.1 lower at the peak of the cyclic rate."""
    if settings.cycle_momentum and settings.schedule == "cyclic":
        return settings.momentum - 0.1 * _triangle(update, total)
    return settings.momentum


def _triangle(update: int, total: int) -> float:
    peak = max(total // 2, 1)
    return update / peak if update < peak else (total - update) / max(total - peak, 1)


def eps_factor(settings: ThreatSettings, step: int, steps_per_epoch: int, at_least: float = 0.0) -> float:
    """The share of eps in use at a step: linear from 0 over `eps_warmup` epochs, then 1.

    `at_least` is the shortest warm-up in epochs, whatever the settings say.
    """
    warmup = max(settings.eps_warmup, at_least) * steps_per_epoch
    return min(1.0, (step + 1) / warmup) if warmup >= 1 else 1.0


def apply(optimizer: Optimizer, settings: OptimisationSettings, update: int, total: int) -> float:
    """Set the optimiser to this update's values and return the learning rate."""
    rate = learning_rate(settings, update, total)
    for group in optimizer.param_groups:
        group["lr"] = rate
        if "momentum" in group:
            group["momentum"] = momentum(settings, update, total)
    return rate
