"""How large a radius the images allow: how far each image is from the nearest one of another class.

Where two images of different classes are at distance d, their balls of radius d / 2 meet, and no model is
right everywhere in both. Half of a small quantile of these distances is therefore an upper limit for eps.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sora.data.dataset import Dataset
from sora.data.splits import stratified

QUANTILES = (0.0, 0.01, 0.05, 0.25, 0.5)
LIMIT = 0.01  # share of images that may lie closer to another class than twice the largest radius
ALIKE = 4 / 255  # linf distance up to which two images are near duplicates
MOST, WORK = 2_000, 2e10  # images, and differences of two numbers, in one check


@dataclass(frozen=True)
class Separation:
    """Distances in one norm, in pixel units."""

    quantiles: dict[str, float]  # of the distance to the nearest image of another class
    limit: float  # half of the 1 % quantile: the largest radius that makes sense


@dataclass(frozen=True)
class RadiusReport:
    """How far the classes of a data set are from each other."""

    images: int  # compared, in the classes' proportions
    linf: Separation
    l2: Separation
    conflicts: list[tuple[int, int, float]]  # training images alike, with other labels; linf distance


def measure_radius(dataset: Dataset) -> RadiusReport:
    """Compare a sample of the training images, as large as about ten seconds allow."""
    size = math.prod(dataset.train.images.shape[1:])
    count = min(len(dataset.train), MOST, max(2, int(math.sqrt(WORK / size))))
    chosen = stratified(dataset.train.labels, count, seed=0)
    x = dataset.train.gather(chosen).flatten(1).float().div_(255)
    y = dataset.train.labels[chosen]
    linf, l2, pairs = [], [], list[tuple[int, int, float]]()
    for rows, distances in _distances(x, y, math.inf):
        linf.append(distances.amin(1))
        near = (distances <= ALIKE).nonzero().tolist()
        found = ((int(rows[i]), j, float(distances[i, j])) for i, j in near)
        pairs += [(int(chosen[i]), int(chosen[j]), distance) for i, j, distance in found if i < j]
    for _, distances in _distances(x, y, 2.0):
        l2.append(distances.amin(1))
    return RadiusReport(count, _separation(torch.cat(linf)), _separation(torch.cat(l2)), pairs)


def _distances(x: Tensor, y: Tensor, p: float) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield rows of images and their distances to all images, infinite within a class."""
    for rows in torch.split(torch.arange(len(x)), 64):
        distances = torch.cdist(x[rows], x, p=p, compute_mode="donot_use_mm_for_euclid_dist")
        yield rows, distances.masked_fill_(y[rows, None] == y, math.inf)


def _separation(nearest: Tensor) -> Separation:
    levels = torch.tensor(QUANTILES, dtype=nearest.dtype)
    values = nearest.quantile(levels, interpolation="lower").tolist()
    quantiles = {f"{100 * level:g} %": value for level, value in zip(QUANTILES, values, strict=True)}
    return Separation(quantiles, float(nearest.quantile(LIMIT, interpolation="lower")) / 2)
