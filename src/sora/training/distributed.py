"""What data-parallel training needs beyond one process: ranks, averages, one writer."""

from __future__ import annotations

import atexit
import gc
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Its functions take the default group as a default argument. If they are first imported when the group exists
# (by DistributedDataParallel), they keep the group and its threads alive after it is destroyed.
import torch.distributed.nn
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from sora._devices import launched, summed, world


@contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """Join the processes that torchrun started; nothing to do for one process on its own."""
    if not launched() or distributed.is_initialized():
        yield
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # torchrun may keep its store over a restart: without names of our own a rank could read the address that
    # a dead one left there, and the group would never form.
    store, number, count = next(distributed.rendezvous("env://"))  # type: ignore[attr-defined]
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = distributed.PrefixStore(f"sora-{attempt}", store)  # type: ignore[attr-defined]
    backend = "nccl" if device.type == "cuda" else "gloo"
    distributed.init_process_group(backend, store=store, rank=number, world_size=count)
    # A group ends with the last object that refers to it. If that is part of a reference cycle, the group's
    # threads outlive Python itself, and one that still frees a tensor then aborts the process.
    atexit.register(gc.collect)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def wrap(model: nn.Module) -> nn.Module:
    """The model as the weight update sees it: gradients averaged over ranks by DDP.

    BatchNorm buffers are not broadcast each step; `average_buffers` brings them together when weights are
    evaluated or saved.
    """
    if world() == 1:
        return model
    with warnings.catch_warnings():
        # Its successor, `forward_sync_buffers`, gives all ranks the buffers of the first at the start.
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
        return DistributedDataParallel(model, broadcast_buffers=False)


def average_buffers(model: nn.Module) -> None:
    """Give all ranks the mean of their floating-point buffers."""
    if world() == 1:
        return
    for buffer in model.buffers():
        if buffer.is_floating_point():
            summed(buffer).div_(world())


def buffers_of_ranks(model: nn.Module) -> list[dict[str, Tensor]]:
    """The floating-point buffers of every rank, by rank and name; all ranks must ask together."""
    gathered: list[dict[str, Tensor]] = [{} for _ in range(world())]
    for name, buffer in model.named_buffers():
        if not buffer.is_floating_point():
            continue
        copies = [torch.empty_like(buffer) for _ in gathered]
        distributed.all_gather(copies, buffer.contiguous())
        for table, copy in zip(gathered, copies, strict=True):
            table[name] = copy
    return gathered


def mean_over_ranks(values: Tensor, required: Tensor | bool = False) -> Tensor:
    """Mean over ranks of each element: all ranks get the same numbers, bit for bit.

    Args:
        values: NaN is left out, as that of a number which some ranks do not have.
        required: Which elements all ranks must have: their mean is NaN if one rank's is.
    """
    if world() == 1:
        return values
    left_out = values.isnan() & ~torch.as_tensor(required, device=values.device)
    terms = summed(torch.stack((values.masked_fill(left_out, 0.0), (~left_out).to(values.dtype))))
    return terms[0] / terms[1]


def any_rank(flag: bool, device: torch.device) -> bool:
    """Whether the flag is up on at least one rank."""
    if world() == 1:
        return flag
    return bool(summed(torch.tensor(float(flag), device=device)))
