"""Independent random streams, identified by integers, so that no generator state has to be stored."""

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from sora._devices import accelerator

GENERATOR = threading.RLock()  # held while numbers are drawn from torch's global generators; after `held`
STEP, EPOCH, INIT = 0, 1, 2  # streams of one run under its seed, so that no two of them draw the same numbers


def mix(*numbers: int) -> int:
    """Return a 63-bit seed that depends on all integers, e.g. `mix(seed, attempt, epoch)`."""
    text = ",".join(str(int(n)) for n in numbers)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def seed_torch(seed: int) -> None:
    """Start torch's global generators from this seed.

    Without an accelerator that is the CPU's alone: `torch.manual_seed` would then format the call stack for
    each kind of device that is not here, which takes half a millisecond or more.
    """
    if accelerator() is None:
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Start torch's global generators from this seed inside the block, then restore them; others wait."""
    kind = accelerator()
    restorable = kind is not None and hasattr(torch.get_device_module(kind), "get_rng_state")
    devices = range(torch.accelerator.device_count() if restorable else 0)
    with GENERATOR, torch.random.fork_rng(devices, device_type=kind or "cuda"):
        seed_torch(seed)
        yield


def generator_for(device: torch.device, seed: int) -> torch.Generator:
    """Return a new generator on the device, or on the CPU for a device that has none."""
    try:
        generator = torch.Generator(device)
    except RuntimeError:
        generator = torch.Generator()
    return generator.manual_seed(seed)


def uniform(like: Tensor, low: float, high: float, generator: torch.Generator | None) -> Tensor:
    """Return uniform noise in the shape, precision and place of a tensor."""
    return _drawn(like, generator, lambda noise: noise.uniform_(low, high, generator=generator))


def normal(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return standard normal noise in the shape, precision and place of a tensor."""
    return _drawn(like, generator, lambda noise: noise.normal_(generator=generator))


def _drawn(like: Tensor, generator: torch.Generator | None, fill: Callable[[Tensor], Tensor]) -> Tensor:
    noise = fill(torch.empty_like(like, device=like.device if generator is None else generator.device))
    return noise if noise.device == like.device else noise.to(like.device)  # which waits for the device
