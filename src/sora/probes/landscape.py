"""The loss over the plane of the FGSM direction and a random direction (appendix G of the paper).

Decision boundaries are drawn in the same plane.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from sora._passes import cross_entropy, frozen, input_gradient
from sora._seeds import generator_for, normal
from sora.attacks import pgd
from sora.evaluation.progress import progress_bar
from sora.figures import Axis, Contours, Figure, Item, Line, Note, Panel, Rule, Surface, colour_of
from sora.probes._base import Probe, ProbedModel, Result, register
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
    generator = generator_for(x.device, seed)
    noise = normal(x, generator)
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


@register("landscape", "the loss over the FGSM direction and a random direction", images=64, figures=(13,))
@dataclass(frozen=True)
class Landscape(Probe[ProbedModel]):
    """Mean cross-entropy of all images at each point of a grid, in units of one full perturbation."""

    span: float = 2.0  # the grid goes from -span to span along both directions
    points: int = 25  # per direction
    second: SecondAxis = "random"  # or from the image to its PGD-10 example

    def measure(self, subject: ProbedModel) -> Result:
        """Measure the loss on the grid and along the line from x to the FGSM example (`way`).

        `bump` is how far the loss along that line climbs above the loss at its end: about 0 where the loss
        rises all the way, large after catastrophic overfitting.
        """
        model = subject.bare_model
        values = axis(self.span, self.points)
        with frozen(model), progress_bar("landscape", self.points**2, subject.progress) as advance:
            x, y = subject.all_images()
            around = plane(model, x, y, subject.threat, subject.seed, self.second)
            with torch.no_grad():
                loss = torch.empty(self.points, self.points, device=subject.device)
                for row, b in enumerate(values):
                    for column, a in enumerate(values):
                        at = around.at(torch.tensor(a), torch.tensor(b))
                        loss[row, column] = cross_entropy(model(at), y)
                        advance()
                fractions = torch.linspace(0, 1, 17)
                way = torch.stack([cross_entropy(model(x + a * around.u), y) for a in fractions])
        return {
            **subject.facts(len(y)),
            "axis": values,
            "second": self.second,
            "loss": loss.tolist(),
            "way": way.tolist(),
            "bump": (way.max() - way[-1]).item(),
        }

    def figure(self, results: Mapping[str, Result]) -> Figure:
        """Draw per run the surface, its contours, and the loss from x to the FGSM example."""
        rows = (_surface, _contours, _way)
        panels = [draw(name, result) for draw in rows for name, result in results.items()]
        return Figure(panels, columns=len(results), width=5.0, height=3.9)

    def sentence(self, result: Result) -> str:
        """State how far the loss falls on the way."""
        way, n = _course(result["way"]), result["n"]
        return f"on the way from the images to their FGSM examples the mean loss {way} (n = {n})"


def _course(way: Sequence[float]) -> str:
    """Return whether the loss rises all the way, and otherwise how far it falls at most."""
    fall = max(max(way[: k + 1]) - loss for k, loss in enumerate(way))
    return f"falls by up to {fall:.2f}" if fall >= 0.005 else "rises all the way"


def _second(result: Result) -> str:
    return "PGD-10" if result.get("second") == "pgd" else "random"


def _surface(name: str, result: Result) -> Panel:
    values, loss = result["axis"], result["loss"]
    low, high = (limit(map(limit, loss)) for limit in (min, max))
    title = f"{name}: loss from {low:.2g} to {high:.2g}\n(mean of {result['n']} images)"
    return Panel([Surface(values, values, loss, high, "loss")], title, *axes(values, _second(result)))


def _contours(name: str, result: Result) -> Panel:
    """Draw losses up to about twice the highest one on the way to the FGSM example, where the bump is."""
    values, top = result["axis"], 2 * max(result["way"])
    items: list[Item] = [
        Contours(values, values, result["loss"], top, "loss (own scale)"),
        Line([0, 1], [0, 0], colour="#ffffff", width=1.2, marker="circle", in_legend=False),
        Note(0, 0.08, "x"),
        Note(1, 0.08, "FGSM"),
    ]
    return Panel(items, name, *axes(values, _second(result)))


def _way(name: str, result: Result) -> Panel:
    way = result["way"]
    fractions = [k / (len(way) - 1) for k in range(len(way))]
    items: list[Item] = [
        Line(fractions, way, "mean loss", colour_of(result.get("method", "")), marker="circle"),
        Rule(way[-1], "y", "loss at the FGSM example"),
    ]
    x, y = Axis("from x (0) to the FGSM example (1)"), Axis("mean loss", low=0)
    return Panel(items, f"{name}: the loss {_course(way)}", x, y)
