"""The interval of a proportion, and whether chance explains one."""

from __future__ import annotations

import math

Z = 1.959963984540054  # two-sided 95 % of a normal distribution


def wilson(successes: int, n: int) -> tuple[float, float]:
    """The 95 % interval of a proportion (Wilson's score interval, valid also near 0 and 1)."""
    share = successes / n
    centre = (share + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * math.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2))
    # Rounding must not push an end past the proportion itself.
    return max(0.0, min(centre - half, share)), min(1.0, max(centre + half, share))


def at_least(successes: int, n: int, share: float) -> float:
    """The probability of at least this many successes in n trials that succeed with this probability."""
    logs = (
        math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
        + k * math.log(share) + (n - k) * math.log1p(-share)
        for k in range(successes)
    )  # fmt: skip
    return max(0.0, 1 - math.fsum(map(math.exp, logs)))
