"""What training of finished runs costs: operations, which every machine shares, and seconds, as ratios.

    python benchmarks/fast.py RUN [RUN ...] [--rounds 15] [--threads 1 --clock cpu]

A step of each run, on random images of each of its sizes, is counted (convolutions and matrix products, by
torch's formulas) and timed beside the others, interleaved. Both are multiplied by the number of steps of that
size. Evaluations and loading are left out. Ratios are to the first run.
"""

from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from _timing import Call, Trainer, arguments, finish, interleave, quartiles, start, table
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from sora import data, methods, models
from sora.runs import RunFolder
from sora.settings import Settings
from sora.training import schedule
from sora.training.state import make_optimizer


class Counter(TorchDispatchMode):
    """Counts operations by torch's formulas; `FlopCounterMode` itself fails on `torch.autograd.grad`."""

    operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in flop_registry:
            self.operations += flop_registry[func.overloadpacket](*args, **(kwargs or {}), out_val=result)
        return result


def trainer_of(settings: Settings, side: int, classes: int, channels: int) -> Trainer:
    """The run's model and optimiser, with fresh weights and one batch of random pixels."""
    options = {
        "width": settings.width,
        "mean": settings.mean,
        "std": settings.std,
        **settings.model_options(),
    }
    model = models.create(settings.model, classes, channels, image_size=side, **options)
    x = torch.rand(settings.batch_size, channels, side, side).contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, classes, (settings.batch_size,))
    return Trainer(models.fast_layout(model.train()), make_optimizer(settings, model), x, y)


def parts_of(settings: Settings) -> list[tuple[int, int, Call]]:
    """The run's image sizes, each with its number of steps and a call that takes one."""
    images = data.load(settings.dataset, settings.data_dir)
    splits = data.split(images, holdout=settings.holdout, limit_train=settings.limit_train)
    per_epoch = -(-len(splits.train) // settings.batch_size)
    epochs = range(settings.epochs)
    sides = [schedule.image_size(settings.image_sizes, epoch, settings.epochs) for epoch in epochs]
    parts = []
    for side, same in groupby(side or images.image_size[0] for side in sides):
        trainer = trainer_of(settings, side, images.num_classes, images.in_channels)
        method = methods.create(settings.method, settings.threat(), **settings.method_options())
        parts.append((side, per_epoch * len(list(same)), trainer.step_of(method)))
    return parts


def main() -> None:
    parser = arguments(__doc__, rounds=15)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    args = start(parser)
    folders = {run: RunFolder(Path(run)) for run in args.runs}
    parts = {run: parts_of(folder.read_settings()) for run, folder in folders.items()}
    calls = {f"{run} {k}": part[2] for run, own in parts.items() for k, part in enumerate(own)}
    times = interleave(calls, args.rounds, args.clock)
    costs = {}
    for run, own in parts.items():
        operations = seconds = 0.0
        for k, (_, steps, call) in enumerate(own):
            with Counter() as counter:
                call()
            operations += steps * counter.operations
            seconds += steps * quartiles(times[f"{run} {k}"])[1]
        costs[run] = operations, seconds
    first = costs[args.runs[0]]
    rows = [
        {
            "run": run,
            "steps": " + ".join(f"{steps} at {side}" for side, steps, _ in parts[run]),
            "PGD-10": f"{folders[run].read_summary()['accuracy']['pgd10']:.1%}",
            "TFLOP": operations / 1e12,
            "ratio": operations / first[0],
            "seconds": seconds,
            "ratio of seconds": seconds / first[1],
        }
        for run, (operations, seconds) in costs.items()
    ]
    table("training", rows)
    finish(args, "fast", {"runs": rows})


if __name__ == "__main__":
    main()
