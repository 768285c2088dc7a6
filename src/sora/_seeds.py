"""Independent random streams, identified by integers, so that no generator state has to be stored."""

from __future__ import annotations

import hashlib


def mix(*numbers: int) -> int:
    """A 63-bit seed from any integers, e.g. `mix(seed, attempt, epoch)`; others give an unrelated seed."""
    text = ",".join(str(int(n)) for n in numbers)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


# Streams of one run under its seed, so that no two of them draw the same numbers.
STEP, EPOCH, INIT = 0, 1, 2
