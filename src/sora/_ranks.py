"""The processes that train together: which one this is, how many there are, sums over all of them."""

from __future__ import annotations

import os

from torch import Tensor, distributed


def rank() -> int:
    """This process' number, 0 for one on its own."""
    return distributed.get_rank() if _several() else 0


def launched() -> bool:
    """Whether torchrun started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def launched_rank() -> int:
    """This process' number as torchrun gave it, also before the processes have joined."""
    return int(os.environ["RANK"]) if launched() and not _several() else rank()


def world() -> int:
    """How many processes train together."""
    return distributed.get_world_size() if _several() else 1


def summed(terms: Tensor) -> Tensor:
    """The sum over all processes, in place; the terms themselves where there is one."""
    if _several():
        distributed.all_reduce(terms)
    return terms


def _several() -> bool:
    return distributed.is_available() and distributed.is_initialized()
