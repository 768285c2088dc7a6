"""Fine-tune a robust model for other classes, of which there are few images.

    python examples/finetune.py

A model learns the digits 0 to 4. Then 100 images of 5 to 9 are used in two ways, with the same number of
steps: to fine-tune that model, which gets a new head because its classes are others, and to train from
scratch. The learning rate of each was chosen on 200 held-out images.
"""

import tempfile

import torch

import sora
from sora.data import Dataset, ImageSet


def part(images: ImageSet, digits: range) -> ImageSet:
    """Return the images of some digits, with labels from 0 on."""
    at = torch.isin(images.labels, torch.tensor([*digits])).nonzero()[:, 0]
    pixels = images.gather(at).permute(0, 2, 3, 1).contiguous()
    return ImageSet(pixels, images.labels[at] - digits.start)


def few(images: ImageSet, count: int) -> tuple[ImageSet, ImageSet]:
    """Return so many images, and 200 others to watch the training with."""
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(5))
    return images.subset(order[:count]), images.subset(order[count : count + 200])


def network(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return sora.models.create("preactresnet18", 5, in_channels=1, image_size=16, width=16, stages=2)


def main(
    seeds: int = 3, images: int = 100, epochs: int = 20, out: str | None = None
) -> dict[str, dict[str, float]]:
    every, low, high = sora.data.load("digits"), range(5), range(5, 10)
    shared = {"method": "sora", "eps": "0.15", "optimizer": "sgd", "schedule": "cyclic", "epochs": epochs}
    first = out or tempfile.mkdtemp() + "/low"
    data = Dataset("low", part(every.train, low), part(every.test, low), None, tuple("01234"))
    sora.fit(network(0), data, out=first, lr=0.2, lr_min=0.01, eval_every=epochs, **shared)

    train, held_out = few(part(every.train, high), images)
    data = Dataset("high", train, part(every.test, high), held_out, tuple("56789"))
    ways = {"fine-tuned": {"init": first, "lr": 0.1}, "from scratch": {"lr": 0.2}}
    found = {}
    for way, own in ways.items():
        results = [
            sora.fit(
                network(seed + 1),
                data,
                recipe="finetune",
                seed=seed,
                eval_every=epochs,
                quiet=seed > 0,
                **shared,
                **own,
                lr_min=own["lr"] / 20,
            )
            for seed in range(seeds)
        ]
        means = [(name, [result.accuracy[name] for result in results]) for name in ("clean", "pgd10")]
        found[way] = {name: sum(values) / seeds for name, values in means}
        shares = ", ".join(f"{name} {share:.1%}" for name, share in found[way].items())
        print(f"{way}: {shares} (n = {results[0].n}, {seeds} seeds)")
    return found


if __name__ == "__main__":
    main()
