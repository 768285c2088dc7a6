"""How fast batches are made, and what share of a training step that is.

    python benchmarks/data.py [--threads 2] [--seconds 3] [--out FILE.json]

Random images of CIFAR-10's size stand for the data: speed does not depend on what they show. Prints a
table, and JSON there or to a file. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch

import sora
from sora import data, methods, models

AUGMENTATIONS = {
    "none": (),
    "crop and flip (CIFAR)": ("crop:4", "flip"),
    "flip and rotation (MedMNIST)": ("flip", "rotate:10"),
    "crop, flip and rotation": ("crop:4", "flip", "rotate:10"),
}


def images(count: int, size: int) -> data.ImageSet:
    pixels = torch.randint(0, 256, (count, size, size, 3), dtype=torch.uint8)
    return data.ImageSet(pixels, torch.randint(0, 10, (count,)))


def rate(loader: data.Loader, seconds: float) -> float:
    """Images a second, from the median time of a batch."""
    batches = (batch for epoch in itertools.count() for batch in loader.epoch(epoch))
    size = len(next(batches).y)
    return size / seconds_a_call(lambda: next(batches), seconds)


def seconds_a_call(call: Callable[[], object], seconds: float) -> float:
    """Median over as many calls as fit."""
    call()
    times, start = [], time.perf_counter()
    while time.perf_counter() - start < seconds or len(times) < 5:
        before = time.perf_counter()
        call()
        times.append(time.perf_counter() - before)
    return sorted(times)[len(times) // 2]


def training_step(batch: data.Batch, width: int) -> Callable[[], object]:
    """Both passes of SORA and the optimiser's step."""
    model = models.create("preactresnet18", 10, width=width).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    method = methods.create("sora", sora.Linf(8 / 255))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        method.step(model, batch.x, batch.y)
        optimizer.step()
        optimizer.zero_grad()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    small, large = images(50_000, 32), images(512, 256)
    rates = {}
    for name, operations in AUGMENTATIONS.items():
        loader = data.Loader(small, 128, data.Augment.parse(operations), seed=0)
        rates[name] = rate(loader, arguments.seconds)
    crops = data.Loader(large, 32, data.Augment.parse(("resized-crop:224", "flip")), seed=0)
    rates["resized crop 256 to 224 (ImageNet-100)"] = rate(crops, arguments.seconds)

    loader = data.Loader(small, 128, data.Augment.parse(("crop:4", "flip")), seed=0)
    batch = next(loader.epoch(0))
    step = seconds_a_call(training_step(batch, arguments.width), 3 * arguments.seconds)
    loading = 128 / rates["crop and flip (CIFAR)"]

    print(f"{'augmentation':<42}images/s")
    for name, value in rates.items():
        print(f"{name:<42}{value:>8,.0f}")
    print(f"\nSORA step at width {arguments.width}, batch 128: {1000 * step:.0f} ms")
    print(f"making that batch: {1000 * loading:.2f} ms, {100 * loading / step:.2f} % of the step")
    result = {
        "images_per_second": {name: round(value) for name, value in rates.items()},
        "step_ms": round(1000 * step, 2),
        "loading_ms": round(1000 * loading, 3),
        "loading_percent_of_step": round(100 * loading / step, 3),
        "width": arguments.width,
        "threads": arguments.threads,
        "torch": torch.__version__,
        "machine": platform.processor() or platform.machine(),
    }
    text = json.dumps(result, indent=1)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    else:
        print(text)


if __name__ == "__main__":
    main()
