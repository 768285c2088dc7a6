"""Telling the C library to keep the memory a training step frees, because the next step wants it back.

Activations of a batch are tens of megabytes each. glibc maps such blocks afresh at every allocation and the
kernel clears them page by page, for an eighth of a step's time on CPU. Kept on the heap instead, they are
reused as they are. The process holds its peak memory until it ends, which a training process does anyway.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # parameters of mallopt(3)


def keep_freed_memory() -> bool:
    """Serve all allocations from the heap and never shrink it; False where the C library is not glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):  # Windows, macOS, musl: nothing to set
        return False
    return bool(mallopt(_MMAP_MAX, 0) and mallopt(_TRIM_THRESHOLD, -1))
