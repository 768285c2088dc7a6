"""What a command computes on: the device, its threads, and the processes that train together."""

import functools
import os

import torch
from torch import Tensor, distributed

import sora
from sora.errors import UserError, short

MOST_THREADS = max(64, 4 * (os.cpu_count() or 1))
"""More processes or threads than this would only compete for the cores."""


@functools.cache
def accelerator() -> str | None:
    """Return the kind of accelerator that torch offers here, such as cuda, mps or xpu; None without one."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found.type if found is not None else None  # without one, torch 2.6 raises instead


def device_name(name: str) -> str:
    """Return the device that `name` means: `auto` is a GPU if there is one, `cuda` this process' own GPU."""
    found = accelerator()
    if name == "auto":
        name = found or "cpu"
    return f"{name}:{os.environ.get('LOCAL_RANK', 0)}" if name == found else name


def pick_device(name: str | torch.device) -> torch.device:
    """Return the device of that name, which must be usable."""
    try:
        device = torch.device(device_name(name) if isinstance(name, str) else name)
        torch.zeros(1, device=device).cpu()  # fails for "meta", whose tensors hold no numbers
    except (RuntimeError, AssertionError, TypeError, ImportError):
        found = accelerator()
        numbers = range(torch.accelerator.device_count() if found else 0)
        allowed = ", ".join(
            ["auto", "cpu", *filter(None, [found]), *(f"{found}:{number}" for number in numbers)]
        )
        raise UserError(f"device {short(str(name))} is not available; allowed: {allowed}") from None
    return device


def wait_for(device: torch.device) -> None:
    """Wait until an accelerator has done all its work."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()


def counts_memory(device: torch.device) -> bool:
    """Return whether torch knows the peak of this device's memory."""
    return hasattr(torch.get_device_module(device), "max_memory_allocated")


def free_memory(device: torch.device) -> int:
    """Return the free bytes of a device; 4 GiB where torch does not tell."""
    module = torch.get_device_module(device)
    if hasattr(module, "mem_get_info"):
        return int(module.mem_get_info(device)[0])
    if hasattr(module, "recommended_max_memory"):
        return int(module.recommended_max_memory() - module.driver_allocated_memory())
    return 4 << 30


def device_for_float64(device: torch.device) -> torch.device:
    """Return the device itself, or the CPU in place of MPS, which has no float64."""
    return torch.device("cpu") if device.type == "mps" else device


def set_threads(count: int) -> None:
    """Use this many CPU threads; 0 keeps torch's own choice."""
    check_count("--threads", count, 0)
    if count:
        torch.set_num_threads(count)


def check_count(what: str, count: int, low: int) -> None:
    """Raise for a number of threads or processes that the machine cannot sensibly run."""
    if not low <= count <= MOST_THREADS:
        raise UserError(f"{what} is {count}; allowed: {low} to {MOST_THREADS}")


def versions() -> str:
    """Return the versions that processes which compute together must share."""
    return f"sora {sora.__version__}, torch {torch.__version__}"


def rank() -> int:
    """Return this process' number, 0 for one on its own."""
    return distributed.get_rank() if _several() else 0


def launched() -> bool:
    """Return whether torchrun started this process as one of several."""
    if os.environ.get("WORLD_SIZE", "") in ("", "0", "1"):
        return False
    for name in ("WORLD_SIZE", "RANK", "MASTER_PORT", "MASTER_ADDR"):
        value = os.environ.get(name, "")
        if not (value.isdecimal() or (value and name == "MASTER_ADDR")):
            raise UserError(f"WORLD_SIZE is set, but {name} is {value!r}; use torchrun, or unset WORLD_SIZE")
    number, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if number >= count:
        raise UserError(f"RANK is {number} and WORLD_SIZE {count}; allowed: ranks from 0 to {count - 1}")
    return True


def launched_rank() -> int:
    """Return this process' number as torchrun gave it, also before the processes have joined."""
    return int(os.environ["RANK"]) if launched() and not _several() else rank()


def world() -> int:
    """Return how many processes train together."""
    return distributed.get_world_size() if _several() else 1


def summed(terms: Tensor) -> Tensor:
    """Sum over all processes in place and return the result; with one process nothing changes."""
    if _several():
        distributed.all_reduce(terms)
    return terms


def _several() -> bool:
    return distributed.is_available() and distributed.is_initialized()
