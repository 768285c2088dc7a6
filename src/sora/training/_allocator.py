"""Makes the C library keep the memory that a training step frees, because the next step needs it again.

The activations of a batch are tens of megabytes each. For such blocks glibc requests new memory from the
kernel at every allocation, and the kernel clears it page by page, which takes an eighth of a step on CPU.
Blocks kept on the heap are reused without clearing. The process then keeps its peak memory until it ends.
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
