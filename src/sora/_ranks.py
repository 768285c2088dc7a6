"""Sums over the processes that train together."""

from __future__ import annotations

from torch import Tensor, distributed


def summed(terms: Tensor) -> Tensor:
    """The sum over all processes, in place; the terms themselves where there is one."""
    if distributed.is_available() and distributed.is_initialized():
        distributed.all_reduce(terms)
    return terms
