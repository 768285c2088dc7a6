"""The plane in which landscapes and decision boundaries are drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from sora._passes import input_gradient
from sora.attacks import pgd
from sora.figures import Axis
from sora.threat import Threat

SecondAxis = Literal["random", "pgd"]


class Plane(NamedTuple):
    """The points `x + a u + b v` around each image x, clamped to the box.

    `u` is the FGSM perturbation, `v` a random one of the same radius or PGD-10's; the FGSM example is at
    (1, 0).
    """

    x: Tensor
    u: Tensor
    v: Tensor
    threat: Threat

    def at(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the points (a, b), which broadcast against the images."""
        return self.threat.clamp(self.x + a * self.u + b * self.v)

    def coordinates(self, point: Tensor) -> tuple[float, float, float]:
        """Return the (a, b) nearest to a point, for a plane of one image, and the share off the plane."""
        # In double precision: the solver's last bits depend on the memory alignment of its operands. On the
        # CPU, since MPS has no float64.
        basis = torch.stack((self.u.flatten(), self.v.flatten()), 1).cpu().double()
        delta = (point - self.x).flatten().cpu().double()
        solution = torch.linalg.lstsq(basis, delta[:, None]).solution
        off = (delta - (basis @ solution)[:, 0]).norm() / delta.norm().clamp(min=1e-12)
        a, b = solution[:, 0].tolist()
        return round(a, 6), round(b, 6), round(off.item(), 6)


def plane(
    model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int, second: SecondAxis = "random"
) -> Plane:
    """Return the plane around each image of a batch, its second direction random or that of PGD-10."""
    generator = torch.Generator(x.device).manual_seed(seed)
    noise = torch.empty_like(x).normal_(generator=generator)
    gradient, _ = input_gradient(model, x, y)
    u, v = (threat.step(x, z, threat.eps) - x for z in (gradient, noise))
    if second == "pgd":
        v = pgd(model, x, y, threat, generator=generator) - x
    return Plane(x, u, v, threat)


def axis(span: float, points: int) -> list[float]:
    """Return evenly spaced values from -span to span."""
    return torch.linspace(-span, span, points, dtype=torch.float64).tolist()


def axes(values: Sequence[float], second: str = "random") -> tuple[Axis, Axis]:
    """Return the axes of a picture of the plane, with ticks at integers."""
    ticks = {float(tick): str(tick) for tick in range(math.ceil(values[0]), math.floor(values[-1]) + 1)}
    return Axis("FGSM direction", names=ticks), Axis(f"{second} direction", names=ticks)
