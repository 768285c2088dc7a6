"""Which data sets are on this machine (`inventory`), and whether one is what it should be (`check`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from sora.data import _store
from sora.data._base import DataInfo, Packed, data_root, info, load, names
from sora.data.dataset import Dataset, ImageSet

_TOLERANCE = 0.01
"""For a data set's own statistics: red and blue of CIFAR-10 differ by 0.045, of PathMNIST by 0.035."""
_IMAGENET_TOLERANCE = 0.06
"""For those of ImageNet, which the paper also uses for its parts: TinyImageNet's std is 0.057 higher."""


@dataclass(frozen=True)
class StoredDataset:
    """One line of the inventory."""

    name: str
    images: dict[str, int]  # number in each split; empty if the data set is absent or damaged
    megabytes: float  # size on disk
    where: str
    damaged: str | None = None  # what is wrong with it, if anything


def inventory(root: str | Path | None = None) -> list[StoredDataset]:
    """List every registered data set and every packed one of the user's own images, by headers alone."""
    home = data_root(root)
    registered = [info(name) for name in names() if ":" not in name]
    lines = []
    for entry in registered:
        built_in = StoredDataset(entry.name, dict(entry.counts), 0.0, "built in")
        lines.append(built_in if entry.packed is None else _describe(entry.name, home / entry.name))
    folders = sorted(meta.parent for meta in home.glob("*/meta.json") if meta.parent.suffix != ".part")
    known = {entry.name for entry in registered}
    return lines + [_describe(folder.name, folder) for folder in folders if folder.name not in known]


def stored(dataset: Dataset) -> StoredDataset:
    """Return the inventory line of a data set that is loaded."""
    if dataset.folder is not None:
        return _describe(dataset.name, dataset.folder)
    images = {split: len(images) for split, images in dataset.splits.items()}
    return StoredDataset(dataset.name, images, 0.0, dataset.name.partition(":")[2] or "built in")


def _describe(name: str, folder: Path) -> StoredDataset:
    if not folder.is_dir():
        return StoredDataset(name, {}, 0.0, "-")
    size = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
    try:
        return StoredDataset(name, _store.survey(folder), size, str(folder))
    except _store.DAMAGE as error:  # one bad store must not hide the others
        return StoredDataset(name, {}, size, str(folder), damaged=str(error))


@dataclass(frozen=True)
class SplitReport:
    """What one split contains."""

    images: int
    per_class: list[int]
    mean: list[float]  # mean of each channel, in [0, 1]
    std: list[float]
    first_labels: list[int]
    first_pixel: list[int]


@dataclass(frozen=True)
class Report:
    """What a data set contains, and what is wrong with it."""

    name: str
    classes: tuple[str, ...]
    splits: dict[str, SplitReport]
    problems: list[str] = field(default_factory=list)


def check(
    data: str | Dataset,
    root: str | Path | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Report:
    """Check every image and byte of a data set, given by its name or loaded.

    `mean` and `std` are the recipe's values for the training images.
    """
    dataset = data if isinstance(data, Dataset) else load(data, root)
    name, entry = dataset.name, info(dataset.name)
    splits = {split: _report(images, dataset.num_classes) for split, images in dataset.splits.items()}
    report = Report(name, dataset.classes, splits)
    for split, part in splits.items():
        empty = [dataset.classes[c] for c, count in enumerate(part.per_class) if count == 0]
        if empty:
            report.problems.append(f"{split} has no image of {', '.join(empty)}")
    imagenet = entry.packed is not None and entry.packed.imagenet_statistics
    tolerance = _IMAGENET_TOLERANCE if imagenet else _TOLERANCE
    for what, expected, measured in (("mean", mean, splits["train"].mean), ("std", std, splits["train"].std)):
        if expected and max(abs(a - b) for a, b in zip(expected, measured, strict=True)) > tolerance:
            report.problems.append(f"{what} is {_numbers(measured)}, the recipe says {_numbers(expected)}")
    changed = _store.changed_arrays(dataset.folder, unread=False) if dataset.folder is not None else []
    report.problems.extend(f"{file} has changed since it was built" for file in changed)
    if entry.packed is not None:
        report.problems.extend(_compare(entry, entry.packed, data_root(root) / name, splits))
    return report


def _report(images: ImageSet, classes: int) -> SplitReport:
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


def _compare(entry: DataInfo, packed: Packed, folder: Path, splits: dict[str, SplitReport]) -> list[str]:
    """List differences from the official numbers and hashes."""
    problems = []
    counts, other = {split: part.images for split, part in splits.items()}, packed.other_counts
    other_division = counts.keys() == other.keys() and all(counts[split] in other[split] for split in counts)
    if counts != dict(entry.counts) and not other_division:
        problems.append(f"it has {counted(counts)} images, the official set {counted(entry.counts)}")
    for split, hashes in _store.read_meta(folder)["splits"].items():
        for kind, recorded in hashes.items():
            if recorded != packed.content.get(f"{split}_{kind}", recorded):
                problems.append(f"{split}_{kind}.npy is not the official content")
    return problems


def counted(counts: Mapping[str, int]) -> str:
    """Return the number of images in each split as text."""
    return " + ".join(f"{count:,} {split}" for split, count in counts.items())


def _numbers(values: Sequence[float]) -> str:
    return " ".join(f"{value:.4f}" for value in values)
