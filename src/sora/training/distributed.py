"""What data-parallel training needs beyond one process: a group, averages over ranks, their statistics."""

from __future__ import annotations

import atexit
import gc
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

# Its functions take the default group as a default argument. If they are first imported when the group exists
# (by DistributedDataParallel), they keep the group and its threads alive after it is destroyed.
import torch.distributed.nn
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from sora._devices import launched, rank, summed, versions, world
from sora.errors import RunError, UserError

if TYPE_CHECKING:
    from sora.training.state import State

PATIENCE = timedelta(minutes=10)  # for a process that does not answer


@contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """Join the processes that torchrun started; nothing to do for one process on its own."""
    if not launched() or distributed.is_initialized():
        yield
        return
    if device.type != "cpu" and hasattr(torch.get_device_module(device), "set_device"):
        torch.get_device_module(device).set_device(device)
    # torchrun may keep its store over a restart: without names of our own a rank could read the address that
    # a dead one left there, and the group would never form.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    backend = distributed.Backend.default_device_backend_map.get(device.type, "gloo")
    # A group ends with the last object that refers to it. If that is part of a reference cycle, the group's
    # threads outlive Python itself, and one that still frees a tensor then aborts the process.
    atexit.register(gc.collect)
    try:
        store, number, count = next(distributed.rendezvous("env://"))  # type: ignore[attr-defined]
        store = distributed.PrefixStore(f"sora-{attempt}", store)  # type: ignore[attr-defined]
        _check_versions(store, number, count)
        distributed.init_process_group(backend, None, PATIENCE, count, number, store)
        yield
    except RuntimeError as error:
        if not isinstance(error, distributed.DistError) and "gloo" not in str(error):
            raise
        raise RunError(f"another process ended or did not answer for {PATIENCE}; resume with all") from error
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()


def _check_versions(store: Any, number: int, count: int) -> None:
    """Raise in every process if one has other packages, so that none waits for those that have ended."""
    mine = versions()
    store.set(f"versions-{number}", mine)
    for other in range(count):
        if (its := store.get(f"versions-{other}").decode()) != mine:
            raise UserError(f"process {number} has {mine}, process {other} {its}; install the same versions")


def wrap(model: nn.Module) -> nn.Module:
    """Return the model as the weight update sees it: gradients averaged over ranks by DDP.

    BatchNorm buffers are not broadcast each step; `RankBuffers` brings them together when weights are
    evaluated or saved.
    """
    if world() == 1:
        return model
    with warnings.catch_warnings():
        # Its successor, `forward_sync_buffers`, gives all ranks the buffers of the first at the start.
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
        return DistributedDataParallel(model, broadcast_buffers=False)


class RankBuffers:
    """BatchNorm's statistics, of which each rank has its own until they are averaged."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._averaged_at: dict[str, int] = {}

    def average(self) -> None:
        """Give all ranks the mean of their floating-point buffers, once per step at most."""
        if self._averaged_at != self._state.place():
            self._averaged_at = self._state.place()
            for buffer in self._buffers().values() if world() > 1 else ():
                summed(buffer).div_(world())

    def of_other_ranks(self) -> dict[str, Tensor]:
        """Return the buffers of the other ranks if they may differ; all ranks must call this together."""
        if world() == 1 or self._averaged_at == self._state.place():
            return {}
        tensors: dict[str, Tensor] = {}
        for name, buffer in self._buffers().items():
            copies = [torch.empty_like(buffer) for _ in range(world())]
            distributed.all_gather(copies, buffer.contiguous())
            tensors |= {f"rank.{number}.{name}": copy for number, copy in enumerate(copies) if number}
        return tensors

    def restore(self, tensors: dict[str, Tensor], same_world: bool) -> None:
        """Take this rank's own buffers from a checkpoint, if it stores them."""
        if not any(name.startswith("rank.") for name in tensors):
            self._averaged_at = self._state.place()
        elif same_world:
            for name, buffer in self._buffers().items():
                if (stored := tensors.get(f"rank.{rank()}.{name}")) is not None:
                    buffer.copy_(stored)

    def _buffers(self) -> dict[str, Tensor]:
        modules = {"model": self._state.model, "ema": self._state.ema}
        return {
            f"{part}.{name}": buffer
            for part, module in modules.items()
            if module is not None
            for name, buffer in module.named_buffers()
            if buffer.is_floating_point()
        }


def mean_over_ranks(values: Tensor, required: Tensor | bool = False) -> Tensor:
    """Return the mean over ranks of each element: all ranks get the same numbers, bit for bit.

    NaN is left out, as some ranks may lack a number; if an element is `required`, one NaN makes its mean NaN.
    """
    if world() == 1:
        return values
    left_out = values.isnan() & ~torch.as_tensor(required, device=values.device)
    terms = summed(torch.stack((values.masked_fill(left_out, 0.0), (~left_out).to(values.dtype))))
    return terms[0] / terms[1]


def any_rank(flag: bool, device: torch.device) -> bool:
    """Return whether the flag is up on at least one rank."""
    if world() == 1:
        return flag
    return bool(summed(torch.tensor(float(flag), device=device)))
