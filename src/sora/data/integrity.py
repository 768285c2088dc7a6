"""Is a data set what it should be? Counts, labels, class balance, statistics, hashes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from sora.data import disk
from sora.data._sources import SOURCES, data_root, load
from sora.data._store import ImageSet

_TOLERANCE = 0.01
"""For a set's own statistics: red and blue of CIFAR-10 differ by 0.045, of PathMNIST by 0.035."""
_BORROWED = 0.06
"""For ImageNet's, which the paper also uses for its parts: TinyImageNet's std is 0.057 above."""


@dataclass(frozen=True)
class SplitReport:
    """What one split holds."""

    images: int
    per_class: list[int]
    mean: list[float]
    """Of each channel, in [0, 1]."""
    std: list[float]
    first_labels: list[int]
    first_pixel: list[int]


@dataclass(frozen=True)
class Report:
    """What was found, and what is wrong with it."""

    name: str
    classes: tuple[str, ...]
    splits: dict[str, SplitReport]
    problems: list[str] = field(default_factory=list)


def check(
    name: str,
    root: str | Path | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Report:
    """Look at every image and byte; `mean` and `std` are what the recipe says of the training images."""
    dataset = load(name, root)
    sets = {"train": dataset.train, "val": dataset.val, "test": dataset.test}
    splits = {split: _look(part, dataset.num_classes) for split, part in sets.items() if part is not None}
    report = Report(name, dataset.classes, splits)
    for split, found in splits.items():
        empty = [dataset.classes[c] for c, count in enumerate(found.per_class) if count == 0]
        if empty:
            report.problems.append(f"{split} has no image of {', '.join(empty)}")
    borrowed = name in SOURCES and SOURCES[name].borrowed_statistics
    tolerance = _BORROWED if borrowed else _TOLERANCE
    for what, expected, measured in (("mean", mean, splits["train"].mean), ("std", std, splits["train"].std)):
        if expected and max(abs(a - b) for a, b in zip(expected, measured, strict=True)) > tolerance:
            report.problems.append(f"{what} is {_numbers(measured)}, the recipe says {_numbers(expected)}")
    if name in SOURCES:
        report.problems.extend(_compare(name, data_root(root) / name, splits))
    return report


def _look(images: ImageSet, classes: int) -> SplitReport:
    height, width, channels = images.images.shape[1:]
    total = torch.zeros(2, channels, dtype=torch.float64)
    for start in range(0, len(images), step := max(1, (1 << 23) // (height * width * channels))):
        x = images.gather(torch.arange(start, min(start + step, len(images)))).double().div_(255)
        total += torch.stack((x.sum((0, 2, 3)), x.square().sum((0, 2, 3))))
    mean, square = total / (len(images) * height * width)
    return SplitReport(
        images=len(images),
        per_class=images.labels.bincount(minlength=classes).tolist(),
        mean=mean.tolist(),
        std=(square - mean.square()).sqrt().tolist(),
        first_labels=images.labels[:10].tolist(),
        first_pixel=images.gather(torch.tensor([0]))[0, :, 0, 0].tolist(),
    )


def _compare(name: str, folder: Path, splits: dict[str, SplitReport]) -> list[str]:
    """Against the official numbers, and against the hashes noted when the store was built."""
    source, problems = SOURCES[name], []
    counts = {split: found.images for split, found in splits.items()}
    other_cut = counts.keys() == source.also.keys() and all(counts[s] in source.also[s] for s in counts)
    if counts != dict(source.counts) and not other_cut:
        problems.append(f"it has {_counts(counts)} images, the official set {_counts(source.counts)}")
    for split, hashes in disk.read_meta(folder)["splits"].items():
        for kind, noted in hashes.items():
            found = disk.digest(folder / f"{split}_{kind}.npy")
            if found != noted:
                problems.append(f"{split}_{kind}.npy has changed since it was built")
            elif found != source.content.get(f"{split}_{kind}", found):
                problems.append(f"{split}_{kind}.npy is not the official content")
    return problems


def _counts(counts: Mapping[str, int]) -> str:
    return " + ".join(f"{count:,} {split}" for split, count in counts.items())


def _numbers(values: Sequence[float]) -> str:
    return " ".join(f"{value:.4f}" for value in values)
