"""What a command computes on: the device, its threads, and the processes that train together."""

import os

import torch
from torch import Tensor, distributed

from sora.errors import UserError, short

USABLE = ("cpu", "cuda", "mps", "xpu")  # not "meta", whose tensors hold no numbers
MOST_THREADS = max(64, 4 * (os.cpu_count() or 1))
"""More processes or threads than this would only compete for the cores."""


def device_name(name: str) -> str:
    """Return the device that `name` means: `auto` is a GPU if there is one, `cuda` this process' own GPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if name == "cuda" else name


def pick_device(name: str | torch.device) -> torch.device:
    """Return the device of that name, which must be usable."""
    try:
        device = torch.device(device_name(name) if isinstance(name, str) else name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError, ImportError):
        device = None
    if device is None or device.type not in USABLE:
        raise UserError(f"device {short(str(name))} is not available; allowed: cpu, cuda, cuda:N, auto")
    return device


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
