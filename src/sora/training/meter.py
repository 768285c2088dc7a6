"""Seconds and peak memory of training alone: evaluations, monitors and checkpoints do not count."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


class Meter:
    """Runs while training runs; on CUDA it waits for the device only when it is paused.

    Args:
        device: Where training runs.
        seconds: What earlier parts of a resumed run took.
        peak_mb: The most memory they used.
    """

    def __init__(self, device: torch.device, seconds: float = 0.0, peak_mb: float = 0.0) -> None:
        self.device, self.peak_mb = device, peak_mb
        self._seconds = seconds
        self._running_since: float | None = None
        self._peak_before = 0.0

    def start(self) -> None:
        """Begin to count."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        self._peak_before = process_peak_mb()
        self._running_since = time.perf_counter()

    def stop(self) -> None:
        """Stop counting."""
        if self._running_since is None:
            return
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            self.peak_mb = max(self.peak_mb, torch.cuda.max_memory_allocated(self.device) / 2**20)
        else:
            # A process has one peak for all it does. If it grew while training ran, it is training's.
            peak = process_peak_mb()
            if peak > self._peak_before or not self.peak_mb:
                self.peak_mb = max(peak, self.peak_mb)  # in this order, an unknown peak stays NaN
        self._seconds += time.perf_counter() - self._running_since
        self._running_since = None

    @property
    def seconds(self) -> float:
        """Seconds counted so far."""
        running = 0.0 if self._running_since is None else time.perf_counter() - self._running_since
        return self._seconds + running

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out what happens inside the block."""
        running = self._running_since is not None
        self.stop()
        try:
            yield
        finally:
            if running:
                self.start()


def process_peak_mb() -> float:
    """The most memory this process has used so far, NaN where the system does not tell."""
    if resource is None:
        return math.nan
    unit = 2**20 if sys.platform == "darwin" else 2**10  # bytes there, kilobytes elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
