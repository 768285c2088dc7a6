"""What a batch costs with each method, measured here: passes, peak memory, time relative to FGSM."""

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sora._devices import counts_memory, wait_for
from sora.methods._base import create, info
from sora.threat import Linf

REFERENCE = "fgsm"


class Bench(NamedTuple):
    """What a method is measured on."""

    model: Callable[[], nn.Module]
    shape: tuple[int, int, int]
    classes: int


class Cost(NamedTuple):
    """The cost of one batch, with all weight updates on it. Passes are in batches."""

    forwards: float
    backwards: float
    peak_bytes: int  # of tensors alive at once, beyond weights, data and the method's own buffers
    seconds: float


def small_model() -> nn.Module:
    """Return a convolutional model that takes milliseconds."""
    layers: list[nn.Module] = []
    for channels_in, channels in ((3, 16), (16, 32), (32, 32)):
        convolution = nn.Conv2d(channels_in, channels, 3, padding=1, stride=1 + (channels_in == 16))
        layers += [convolution, nn.BatchNorm2d(channels), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


SMALL = Bench(small_model, (3, 32, 32), 10)


def measure(
    name: str,
    *,
    device: str = "cpu",
    batch_size: int = 32,
    rounds: int = 5,
    bench: Bench = SMALL,
    hyper: Mapping[str, Any] | None = None,
) -> Cost:
    """Return the cost of one method, by default on a small convolutional model."""
    return _measure([name], device, batch_size, rounds, bench, hyper)[name]


def cost_table(
    names: Sequence[str],
    *,
    device: str = "cpu",
    batch_size: int = 32,
    rounds: int = 5,
    bench: Bench = SMALL,
) -> list[dict[str, Any]]:
    """Return a row per method: passes by the paper's count, measured costs, time in multiples of FGSM's."""
    costs = _measure([*names, REFERENCE], device, batch_size, rounds, bench)
    return [
        {"name": name, "paper": info(name).paper_cost}
        | costs[name]._asdict()
        | {"relative_time": costs[name].seconds / costs[REFERENCE].seconds}
        for name in names
    ]


def _measure(
    names: Sequence[str],
    device: str,
    batch_size: int,
    rounds: int,
    bench: Bench,
    hyper: Mapping[str, Any] | None = None,
) -> dict[str, Cost]:
    benches = {
        name: _MethodBench(name, torch.device(device), batch_size, bench, hyper or {}) for name in names
    }
    passes = {name: each.passes() for name, each in benches.items()}  # also warms up
    peaks = {name: each.peak_bytes() for name, each in benches.items()}
    times: dict[str, list[float]] = {name: [] for name in benches}
    for _ in range(rounds):  # interleaved, so that other load on the machine affects all methods alike
        for name, each in benches.items():
            times[name].append(each.seconds())
    # The best round: the others include other load on the machine.
    return {name: Cost(*passes[name], peaks[name], min(times[name])) for name in benches}


class _MethodBench:
    """A method, a model and a batch."""

    def __init__(
        self, name: str, device: torch.device, batch_size: int, bench: Bench, hyper: Mapping[str, Any]
    ) -> None:
        self.device, self.model = device, bench.model().to(device)
        x = torch.rand(batch_size, *bench.shape, device=device)
        self.x = x.contiguous(memory_format=torch.channels_last)  # as in training
        self.y = torch.arange(batch_size, device=device) % bench.classes
        self.index = torch.arange(batch_size, device=device)
        self.method = create(name, Linf(8 / 255), **hyper).to(device)
        sizes: Any = {"n_train": batch_size, "batch_size": batch_size, "epochs": 1, "steps_per_epoch": 1}
        self.method.setup(shape=bench.shape, classes=bench.classes, model=self.model, **sizes)
        self.method.begin_epoch(1)

    def run(self) -> None:
        """Train on one batch with all its updates; gradients are freed afterwards."""
        for _ in range(self.method.updates):
            self.method.step(self.model, self.x, self.y, index=self.index)
            self.model.zero_grad(set_to_none=True)

    def passes(self) -> tuple[float, float]:
        """Return forwards and backwards through the model, counted by hooks on its output."""
        forwards, backwards = [], []

        def count(module: nn.Module, args: Any, logits: Tensor) -> None:
            forwards.append(len(logits))
            if logits.requires_grad:
                logits.register_hook(lambda gradient: backwards.append(len(gradient)))  # type: ignore[no-untyped-call]

        with self.model.register_forward_hook(count):
            self.run()
        return sum(forwards) / len(self.x), sum(backwards) / len(self.x)

    def peak_bytes(self) -> int:
        """Return the most bytes allocated at once during a batch, beyond those before it."""
        if counts_memory(self.device):
            module = torch.get_device_module(self.device)
            module.reset_peak_memory_stats(self.device)
            before = int(module.memory_allocated(self.device))
            self.run()
            return int(module.max_memory_allocated(self.device)) - before
        live = LiveBytes()
        with live:
            self.run()
        return live.peak

    def seconds(self) -> float:
        """Return the time of one batch."""
        wait_for(self.device)
        began = time.perf_counter()
        self.run()
        wait_for(self.device)
        return time.perf_counter() - began


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of every storage from the operation that allocates it until it is freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._known: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._enter((args, kwargs), counted=False)  # what is new here existed before the measurement
        result = func(*args, **(kwargs or {}))
        self._enter(result, counted=True)
        self.peak = max(self.peak, self.live)
        return result

    def _enter(self, values: Any, counted: bool) -> None:
        storages = [leaf.untyped_storage() for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
        for storage in storages:
            address = storage.data_ptr()
            if address and address not in self._known:
                self._known[address] = storage.nbytes() if counted else 0
                self.live += self._known[address]
                weakref.finalize(storage, self._leave, address)

    def _leave(self, address: int) -> None:
        self.live -= self._known.pop(address)
