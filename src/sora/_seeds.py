"""Independent random streams, identified by integers, so that no generator state has to be stored."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

GENERATOR = threading.RLock()  # held while numbers are drawn from torch's global generators; after `held`
STEP, EPOCH, INIT = 0, 1, 2  # streams of one run under its seed, so that no two of them draw the same numbers


def mix(*numbers: int) -> int:
    """Return a 63-bit seed that depends on all integers, e.g. `mix(seed, attempt, epoch)`."""
    text = ",".join(str(int(n)) for n in numbers)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Start torch's global generators from this seed inside the block and restore them afterwards.

    A model or an attack that draws from them is then a function of the seed. Other threads wait.
    """
    with GENERATOR, torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield
