"""Sums over the processes of a distributed training run."""

from __future__ import annotations

from torch import Tensor, distributed


def summed(terms: Tensor) -> Tensor:
    """The sum over all processes, computed in place; with a single process, `terms` unchanged."""
    if distributed.is_available() and distributed.is_initialized():
        distributed.all_reduce(terms)
    return terms
