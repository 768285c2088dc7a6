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

from sora import methods, models
from sora.runs import RunFolder, build_model
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


def parts_of(folder: RunFolder) -> list[tuple[int, int, Call]]:
    """The run's image sizes, each with its number of steps and a call that takes one."""
    settings, summary, description = folder.read_settings(), folder.read_summary(), folder.read_model()
    batch, epochs = settings.batch_size, settings.epochs
    sides = [schedule.image_size(settings.image_sizes, epoch, epochs) for epoch in range(epochs)]
    parts = []
    for side, same in groupby(side or description["image_size"] for side in sides):
        model = models.fast_layout(build_model(description).train())
        x = torch.rand(batch, description["in_channels"], side, side)
        x = x.contiguous(memory_format=torch.channels_last)
        y = torch.randint(0, description["num_classes"], (batch,))
        method = methods.create(settings.method, settings.threat(), **settings.method_options())
        trainer = Trainer(model, make_optimizer(settings, model), x, y)
        steps = -(-summary["n_train"] // batch) * len(list(same))
        parts.append((side, steps, trainer.step_of(method)))
    return parts


def main() -> None:
    parser = arguments(__doc__, rounds=15)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    args = start(parser)
    folders = {run: RunFolder(Path(run)) for run in args.runs}
    parts = {run: parts_of(folder) for run, folder in folders.items()}
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
