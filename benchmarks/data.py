"""How fast batches are made, and what share of a training step that is.

    python benchmarks/data.py [--width 16] [--rounds 15] [--threads 1 --clock cpu]

Random images of CIFAR-10's size stand for the data: speed does not depend on what they show. Each round makes
some batches of every kind and takes one SORA step, so the share compares neighbours.
"""

import itertools

import torch
from _timing import Call, Trainer, arguments, finish, interleave, quartiles, ratio, start, table

from sora import data

CIFAR, CROPS = "crop and flip (CIFAR)", "resized crop 256 to 224 (ImageNet-100)"
AUGMENTATIONS = {
    "none": (),
    CIFAR: ("crop:4", "flip"),
    "flip and rotation (MedMNIST)": ("flip", "rotate:10"),
    "crop, flip and rotation": ("crop:4", "flip", "rotate:10"),
    CROPS: ("resized-crop:224", "flip"),
}
BATCHES = 10  # made in one turn: a single one takes about a millisecond


def images(count: int, size: int) -> data.ImageSet:
    pixels = torch.randint(0, 256, (count, size, size, 3), dtype=torch.uint8)
    return data.ImageSet(pixels, torch.randint(0, 10, (count,)))


def making(loader: data.Loader) -> Call:
    """The next batches of an endless training."""
    batches = (batch for epoch in itertools.count() for batch in loader.epoch(epoch))
    return lambda: list(itertools.islice(batches, BATCHES))


def main() -> None:
    args = start(arguments(__doc__, width=16, batch=128, images=50_000, rounds=15))
    small, large = images(args.images, 32), images(4 * args.batch, 256)
    loaders = {
        name: data.Loader(
            large if name == CROPS else small, args.batch, data.Augment.parse(operations), seed=0
        )
        for name, operations in AUGMENTATIONS.items()
    }
    trainer = Trainer.build(args.width, args.batch)
    batch = next(loaders[CIFAR].epoch(0))
    trainer.x, trainer.y = batch.x, batch.y  # as a loader lays them out
    candidates = {name: making(loader) for name, loader in loaders.items()}
    candidates["sora"] = trainer.step_of(trainer.method("sora"))
    times = interleave(candidates, args.rounds, args.clock)
    rows = []
    for name in loaders:
        seconds = quartiles(times[name])[1] / BATCHES
        rows.append({"augmentation": name, "ms": 1e3 * seconds, "images/s": args.batch / seconds})
    share = {key: value / BATCHES for key, value in ratio(times, CIFAR, "sora").items()}
    step = 1e3 * quartiles(times["sora"])[1]
    table("making one batch", rows)
    print(f"\nSORA step (width {args.width}, batch {args.batch}): {step:.0f} ms, making its batch")
    print(f"{share['ratio']:.2%} ({share['low']:.2%} to {share['high']:.2%}) of that")
    sizes = {"width": args.width, "batch": args.batch}
    finish(args, "data", sizes | {"batches": rows, "step_ms": step, "share of a SORA step": share})


if __name__ == "__main__":
    main()
