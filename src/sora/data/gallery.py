"""The picture of a data set: samples beside the class distribution."""

import math
from collections.abc import Mapping, Sequence
from itertools import islice, zip_longest
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from sora._files import replace_file
from sora.data.dataset import Dataset, ImageSet

_NAMED = 20  # with more classes than this, each gets one sample and no name
_BLUE = "#4c72b0"


def draw_samples(dataset: Dataset, out: Path) -> None:
    """Draw training images of every class, and the number of images per class."""
    figure = Figure(figsize=(12, 6.5), layout="constrained")
    counts = dataset.train.labels.bincount(minlength=dataset.num_classes)
    if dataset.num_classes <= _NAMED:
        samples = figure.subplots()
        across = max(3, round(1.2 * dataset.num_classes))
        rows = [dataset.train.gather(_first(dataset.train, c, across)) for c in range(dataset.num_classes)]
        _mosaic(samples, rows, dataset.classes)
        # As high as the mosaic, with the same vertical axis: every bar is beside its class.
        bars = samples.inset_axes((1.02, 0, 0.6, 1))
        pitch = samples.get_yticks()[1] - samples.get_yticks()[0]
        names = bars.barh(samples.get_yticks(), counts.tolist(), height=0.8 * pitch, color=_BLUE)
        bars.bar_label(names, fmt="{:,.0f}", padding=3)
        bars.set(ylim=samples.get_ylim(), yticks=[], xlabel="training images", xmargin=0.2)
        bars.locator_params(axis="x", nbins=4)
    else:
        samples, bars = figure.subplots(1, 2, width_ratios=(1.4, 1))
        one = torch.cat([_first(dataset.train, c, 1) for c in range(dataset.num_classes)])
        across = math.ceil(math.sqrt(1.4 * len(one)))
        _mosaic(samples, [dataset.train.gather(one[i : i + across]) for i in range(0, len(one), across)])
        bars.bar(range(len(counts)), counts.sort(descending=True).values.tolist(), width=1, color=_BLUE)
        bars.set(xlabel="classes, largest first", ylabel="training images")
    bars.spines[["top", "right"]].set_visible(False)
    height, width = dataset.image_size
    shape = f"{dataset.in_channels}x{height}x{width}, {dataset.num_classes} classes"
    figure.suptitle(f"{dataset.name}: {shape}, {len(dataset.train):,} train + {len(dataset.test):,} test")
    _save(figure, out)


def draw_radii(dataset: Dataset, radii: Mapping[str, float], out: Path) -> None:
    """Draw one training image per class as it is, and with every pixel moved by each radius, up or down."""
    chosen = one_of_each(dataset.train, min(dataset.num_classes, 10))
    clean = dataset.train.gather(chosen).float() / 255
    sign = torch.randn(clean.shape, generator=torch.Generator().manual_seed(0)).sign()
    columns = [clean, *((clean + radius * sign).clamp(0, 1) for radius in radii.values())]
    figure = Figure(figsize=(0.9 * len(columns) + 3, 0.9 * len(clean) + 1), layout="constrained")
    axes = figure.subplots()
    rows = (torch.stack(columns, 1) * 255).round().to(torch.uint8)
    _mosaic(axes, list(rows), [dataset.classes[label] for label in dataset.train.labels[chosen].tolist()])
    names = ["clean", *radii]
    width = rows.shape[-1]
    axes.set_xticks([(c + 0.5) * width + c * max(1, rows.shape[-2] // 16) for c in range(len(names))], names)
    axes.xaxis.tick_top()
    figure.suptitle(f"{dataset.name}: linf noise of full strength. Is each still its class?")
    _save(figure, out)


def one_of_each(images: ImageSet, count: int) -> Tensor:
    """Return the positions of `count` images from as many classes as possible."""
    classes = images.labels.bincount().nonzero()[:, 0].tolist()
    turns = zip_longest(*(_first(images, c, count).tolist() for c in classes))
    positions = (position for turn in turns for position in turn if position is not None)
    return torch.tensor(list(islice(positions, count)))


def _first(images: ImageSet, label: int, count: int) -> Tensor:
    return (images.labels == label).nonzero()[:count, 0]


def _mosaic(axes: Axes, rows: Sequence[Tensor], names: Sequence[str] = ()) -> None:
    """Draw rows of uint8 (n, C, H, W) as one image with thin white lines, a name before each row."""
    channels, height, width = rows[0].shape[1:]
    gap = max(1, height // 16)
    size = len(rows) * (height + gap) - gap, max(map(len, rows)) * (width + gap) - gap
    canvas = torch.full((*size, channels), 255, dtype=torch.uint8)
    for r, row in enumerate(rows):
        for c, image in enumerate(row):
            top, left = r * (height + gap), c * (width + gap)
            canvas[top : top + height, left : left + width] = image.permute(1, 2, 0)
    axes.imshow(canvas.expand(-1, -1, 3).numpy(), interpolation="nearest")
    shortened = [name if len(name) <= 24 else f"{name[:22]}..." for name in names]
    axes.set_yticks([r * (height + gap) + height / 2 for r in range(len(names))], shortened)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _save(figure: Figure, out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    replace_file(out, lambda temporary: figure.savefig(temporary, format="png", dpi=120))
