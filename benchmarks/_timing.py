"""What the benchmarks share: training steps to time, interleaved timing, tables and JSON.

Times are compared only as ratios of neighbours: every round runs each candidate once, in an order that
rotates, and a ratio is the median over rounds of the quotient inside a round. So a machine that is slow for a
while is slow for all of them. On a busy machine `--threads 1 --clock cpu` counts the processor time of this
process alone, and the quotient of the minima is the steadier number.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from sora import methods, models
from sora.settings import Settings
from sora.threat import Linf
from sora.training.process import keep_freed_memory
from sora.training.state import make_optimizer

Call = Callable[[], object]
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)
EPS = 8 / 255


def arguments(doc: str | None, **numbers: int) -> argparse.ArgumentParser:
    """A parser with the flags every benchmark has; `numbers` are further ones with their defaults."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--out", type=Path, help="write the JSON here instead of printing it")
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser


def start(parser: argparse.ArgumentParser, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the flags and set the process up as `sora train` does."""
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    keep_freed_memory()
    return args


@dataclass
class Trainer:
    """A network, an optimiser and one batch of random pixels, to take training steps with."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    x: Tensor
    y: Tensor

    @classmethod
    def build(cls, width: int, batch: int = 128, size: int = 32) -> Trainer:
        model: nn.Module = models.create("preactresnet18", 10, width=width, mean=MEAN, std=STD)
        models.fast_layout(model)
        x = torch.rand(batch, 3, size, size).contiguous(memory_format=torch.channels_last)
        optimizer = make_optimizer(Settings(lr=0.01), model)
        return cls(model, optimizer, x, torch.randint(0, 10, (batch,)))

    def method(self, name: str, *, observing: bool = True, **hyper: Any) -> methods.Method:
        """A method set up as a training loop would."""
        method = methods.create(name, Linf(EPS), **hyper)
        batch, shape = len(self.x), tuple(self.x.shape[1:])
        sizes = {"n_train": batch, "batch_size": batch, "epochs": 30, "steps_per_epoch": 1, "classes": 10}
        method.setup(shape=shape, model=self.model, **sizes)
        method.begin_epoch(1)
        method.observing = observing
        return method

    def step_of(self, method: methods.Method) -> Call:
        """All weight updates of one batch."""
        index = torch.arange(len(self.x))

        def step() -> None:
            for _ in range(method.updates):
                method.step(self.model, self.x, self.y, index=index)
                self.update()
                method.after_update(self.model)

        return step

    def update(self) -> None:
        """The optimiser's part of a step."""
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def interleave(candidates: Mapping[str, Call], rounds: int, clock: str = "wall") -> dict[str, list[float]]:
    """Seconds of each candidate in each round, after one call of each to warm up."""
    names, now = list(candidates), CLOCKS[clock]
    times: dict[str, list[float]] = {name: [] for name in names}
    for call in candidates.values():
        call()
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            began = now()
            candidates[name]()
            times[name].append(now() - began)
    return times


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The lower quartile, the median and the upper quartile."""
    low, middle, high = numpy.quantile(values, (0.25, 0.5, 0.75))
    return float(low), float(middle), float(high)


def ratio(times: Mapping[str, Sequence[float]], name: str, reference: str) -> dict[str, float]:
    """`name` over `reference`: quartiles of the quotients inside rounds, quotient of the minima."""
    quotients = [a / b for a, b in zip(times[name], times[reference], strict=True)]
    low, middle, high = quartiles(quotients)
    return {"ratio": middle, "low": low, "high": high, "of minima": min(times[name]) / min(times[reference])}


def relative(times: Mapping[str, Sequence[float]], reference: str) -> list[dict[str, Any]]:
    """A row for each candidate: its median milliseconds and its ratio to the reference."""
    return [
        {"name": name, "ms": quartiles(values)[1] * 1e3, **ratio(times, name, reference)}
        for name, values in times.items()
    ]


def table(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows of one shape in columns."""
    cells = [[_text(value) for value in row.values()] for row in rows]
    heads = list(rows[0])
    widths = [max(len(line[k]) for line in [heads, *cells]) for k in range(len(heads))]
    print(f"\n{title}")
    for line in [heads, *cells]:
        padded = [text.rjust(width) for text, width in zip(line, widths, strict=True)]
        print("  ".join([line[0].ljust(widths[0]), *padded[1:]]))


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def finish(args: argparse.Namespace, name: str, result: Mapping[str, Any]) -> None:
    """Print the result as JSON, or write it where `--out` says."""
    where = {"torch": torch.__version__, "python": platform.python_version(), "threads": args.threads}
    text = json.dumps({"benchmark": name, **where, "clock": args.clock, **result}, indent=2)
    if args.out:
        args.out.write_text(text + "\n")
    else:
        print(f"\n{text}")
