"""Learning rate, momentum, eps and image size as functions of the update or epoch, without state."""

import math
from collections.abc import Sequence

from torch.optim import Optimizer

from sora.settings.groups import OptimisationSettings, ThreatSettings

RISING = 0.3  # share of the epochs in which the one-cycle rate rises
FIRST = 25  # the highest one-cycle rate divided by the first


def learning_rate(settings: OptimisationSettings, update: int, total: int) -> float:
    """Return the rate of update `update` (from 0) of `total`.

    Cyclic: linear from `lr_min` up to `lr` over the first half, linear down over the rest. Cosine: from
    `lr` to `lr_min`. Multistep: a tenth at each milestone. One-cycle: constant within an epoch, along a
    cosine from `lr` / 25 up to `lr`, then down to `lr_min` in the last epoch.
    """
    high, low = settings.lr, settings.lr_min
    if settings.schedule == "one-cycle":
        height, is_rising = _one_cycle(settings.epochs, update, total)
        low = high / FIRST if is_rising else low
        return low + (high - low) * height
    if settings.schedule == "cosine":
        return low + (high - low) * 0.5 * (1 + math.cos(math.pi * update / total))
    if settings.schedule == "multistep":
        return high * 0.1 ** sum(update >= milestone * total for milestone in settings.milestones)
    return low + (high - low) * _triangle(update, total)


def rate_drops(settings: OptimisationSettings) -> tuple[float, ...]:
    """Return the epochs after which the rate drops at once."""
    multistep = settings.schedule == "multistep"
    # Rounded, as a fraction such as 100/110 of 110 epochs is not exactly 100.
    return tuple(round(m * settings.epochs, 6) for m in settings.milestones) if multistep else ()


def momentum(settings: OptimisationSettings, update: int, total: int) -> float:
    """Return a constant, or with `cycle_momentum` 0.1 less at the peak of a cyclic or one-cycle rate."""
    if settings.cycle_momentum and settings.schedule == "cyclic":
        return settings.momentum - 0.1 * _triangle(update, total)
    if settings.cycle_momentum and settings.schedule == "one-cycle":
        return settings.momentum - 0.1 * _one_cycle(settings.epochs, update, total)[0]
    return settings.momentum


def _triangle(update: int, total: int) -> float:
    peak = max(total // 2, 1)
    return update / peak if update < peak else (total - update) / max(total - peak, 1)


def _one_cycle(epochs: int, update: int, total: int) -> tuple[float, bool]:
    """Return the height of the cycle, 0 to 1, in the epoch of an update, and whether it still rises.

    As `torch.optim.lr_scheduler.OneCycleLR` stepped once per epoch; in runs of up to three epochs, for which
    that would leave out the peak, the first epoch has it.
    """
    epoch, last = update * epochs // total, epochs - 1
    peak = max(RISING * epochs - 1, 0.0)
    is_rising = epoch <= peak
    if is_rising:
        away = 1 - epoch / peak if peak else 0.0
    else:
        away = (epoch - peak) / (last - peak)
    return 0.5 * (1 + math.cos(math.pi * away)), is_rising


def image_size(sizes: Sequence[int], epoch: int, epochs: int) -> int | None:
    """Return the side of the training images in an epoch (from 0) of `epochs`; None: their own."""
    return sizes[epoch * len(sizes) // epochs] if sizes else None


def eps_factor(settings: ThreatSettings, step: int, steps_per_epoch: int, at_least: float = 0.0) -> float:
    """Return the share of eps in use at a step: linear from 0 over `eps_warmup` epochs, then 1.

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
