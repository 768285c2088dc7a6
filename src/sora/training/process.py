"""The process that a run trains in: threads and memory, the time that training takes, signals to stop."""

import ctypes
import math
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import torch

from sora._devices import counts_memory, set_threads, wait_for
from sora.errors import UserError
from sora.training.distributed import any_rank
from sora.training.state import State

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

KEPT = "its checkpoint is kept, continue with --resume"
_TRAINS = threading.RLock()  # a process has its number of threads and its random numbers once
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # parameters of mallopt(3)


@contextmanager
def configured(threads: int) -> Iterator[None]:
    """Use so many threads and deterministic kernels inside the block, and keep freed memory from now on."""
    if not _TRAINS.acquire(blocking=False):
        raise UserError("another thread is training; train after it, or in a process of its own")
    before = torch.get_num_threads(), torch.backends.cudnn.deterministic
    keep_freed_memory()
    try:
        set_threads(threads)
        torch.backends.cudnn.deterministic = True
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.backends.cudnn.deterministic = before[1]
        _TRAINS.release()


def keep_freed_memory() -> bool:
    """Make the C library keep the memory that a step frees; return False where it is not glibc.

    The activations of a batch are tens of megabytes each. For such blocks glibc requests new memory from the
    kernel at every allocation, and the kernel clears it page by page, which takes an eighth of a step on CPU.
    Blocks kept on the heap are reused without clearing. The process then keeps its peak memory until it ends.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):  # Windows, macOS, musl: nothing to set
        return False
    return bool(mallopt(_MMAP_MAX, 0) and mallopt(_TRIM_THRESHOLD, -1))


class TrainingMeter:
    """Adds to a state the seconds and peak memory of training alone, without evaluations and checkpoints.

    It waits for the device only when it is paused.
    """

    def __init__(self, state: State, device: torch.device) -> None:
        self.state, self.device = state, device
        self._running_since: float | None = None
        self._peak_before = 0.0

    def start(self) -> None:
        """Begin to count."""
        if counts_memory(self.device):
            torch.get_device_module(self.device).reset_peak_memory_stats(self.device)
        self._peak_before = process_peak_mb()
        self._running_since = time.perf_counter()

    def stop(self) -> None:
        """Stop counting."""
        if self._running_since is None:
            return
        wait_for(self.device)
        if counts_memory(self.device):
            peak = torch.get_device_module(self.device).max_memory_allocated(self.device) / 2**20
            self.state.peak_mb = max(self.state.peak_mb, peak)
        else:
            # A process has one peak for all it does. If it grew while training ran, it is training's.
            peak = process_peak_mb()
            if peak > self._peak_before or not self.state.peak_mb:
                self.state.peak_mb = max(peak, self.state.peak_mb)  # in this order, an unknown peak stays NaN
        self.state.seconds = self.seconds
        self._running_since = None

    @property
    def seconds(self) -> float:
        """Seconds counted so far."""
        running = 0.0 if self._running_since is None else time.perf_counter() - self._running_since
        return self.state.seconds + running

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
    """Return the most memory this process has used so far, NaN where the system does not tell."""
    if resource is None:
        return math.nan
    unit = 2**20 if sys.platform == "darwin" else 2**10  # bytes there, kilobytes elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


class Interrupted(Exception):
    """The run was asked to stop, and its checkpoint is on disk."""

    def __init__(self, number: int, step: int, where: str = "", result: str = KEPT) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name} {where}at step {step}; {result}")
        self.number, self.step, self.where, self.exit_code = number, step, where, 128 + number


class StopSignals:
    """Notes the first Ctrl-C or SIGTERM, for the loop to stop after the step; a second ends the process."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._received: int | None = None
        self._handlers: dict[int, object] = {}
        self._evaluated_step: int | None = None

    def __enter__(self) -> "StopSignals":
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is signal.SIG_IGN:  # as in a script's background
                continue
            try:
                self._handlers[number] = signal.signal(number, self._note)
            except ValueError:  # not in the main thread: then the host program handles signals
                break
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._received = number
        signal.signal(number, signal.SIG_DFL)
        self._stop_evaluation()

    def _stop_evaluation(self) -> None:
        if self._received is not None and self._evaluated_step is not None:
            raise Interrupted(self._received, self._evaluated_step, "during the evaluation ")

    @contextmanager
    def stopping_at_once(self, step: int) -> Iterator[None]:
        """Raise inside the block as soon as a signal comes: an evaluation may take hours."""
        if self._world > 1:  # the other ranks would wait forever for one that has left
            yield
            return
        self._evaluated_step = step
        try:
            self._stop_evaluation()
            yield
        finally:
            self._evaluated_step = None

    def agreed(self, device: torch.device, compare: bool) -> int | None:
        """Return the signal to stop for. Several ranks must agree on it, and do so only if all `compare`."""
        if self._world == 1:
            return self._received
        received = compare and any_rank(self._received is not None, device)
        return self._received or signal.SIGTERM if received else None
