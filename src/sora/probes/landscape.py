"""The loss over the plane of the FGSM direction and a random direction (appendix G of the paper)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from sora._passes import cross_entropy, frozen
from sora.evaluation.progress import progress_bar
from sora.probes._base import Probe, ProbedModel, Result
from sora.probes._plane import axis, grid_points, plane
from sora.probes._registry import register

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@register("landscape", "the loss over the FGSM direction and a random direction", images=64)
@dataclass(frozen=True)
class Landscape(Probe[ProbedModel]):
    """Mean cross-entropy of all images at each point of a grid, in units of one full perturbation.

    Attributes:
        span: The grid goes from -span to span along both directions.
        points: Grid points per direction.
    """

    span: float = 2.0
    points: int = 25

    def measure(self, subject: ProbedModel) -> Result:
        """The loss on the grid and along the way from x to the FGSM example.

        `bump` is how far the loss along that way climbs above the loss at its end: about 0 where the loss
        rises all the way, large after catastrophic overfitting.
        """
        model, threat = subject.network, subject.threat
        values = axis(self.span, self.points)
        with frozen(model), progress_bar("landscape", self.points**2, subject.progress) as advance:
            x, y = subject.all_images()
            around = plane(model, x, y, threat, subject.seed)
            with torch.no_grad():
                loss = torch.empty(self.points, self.points, device=subject.device)
                for row, column, b, a in grid_points(values):
                    at = around.at(torch.tensor(a), torch.tensor(b))
                    loss[row, column] = cross_entropy(model(at), y)
                    advance()
                fractions = torch.linspace(0, 1, 17)
                way = torch.stack([cross_entropy(model(x + a * around.u), y) for a in fractions])
        return {
            "threat": {"norm": threat.norm, "eps": threat.eps},
            "n": len(y),
            "axis": values,
            "loss": loss.tolist(),
            "way": way.tolist(),
            "bump": (way.max() - way[-1]).item(),
        }

    def picture(self, results: Mapping[str, Result], file: Path) -> None:
        """Per run the surface, its contours, and the loss from x to the FGSM example, each on its scale."""
        from sora._drawing import plt, save

        figure = plt.figure(figsize=(5.0 * len(results), 11.6), layout="constrained")
        count = len(results)
        for column, (name, result) in enumerate(results.items(), start=1):
            top = figure.add_subplot(3, count, column, projection="3d")
            _draw_surface(top, result)
            low, high = (f"{limit(map(limit, result['loss'])):.2g}" for limit in (min, max))
            top.set_title(f"{name}: loss from {low} to {high}\n(mean of {result['n']} images)")
            _draw_contours(figure.add_subplot(3, count, count + column), result)
            _draw_way(figure.add_subplot(3, count, 2 * count + column), result)
        save(figure, file)

    def sentence(self, result: Result) -> str:
        """The height of the bump."""
        n, bump = result["n"], result["bump"]
        highest = f"is up to {bump:.3f} higher than at the end" if bump else "is highest at the end"
        return f"on the way from the images to their FGSM examples the mean loss {highest} (n = {n})"


def _round_ticks(highest: float) -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(0, highest)


def _draw_surface(panel: Any, result: Result) -> None:
    import numpy as np

    a, b = np.meshgrid(result["axis"], result["axis"])
    loss, ticks = np.array(result["loss"]), _round_ticks(max(map(max, result["loss"])))
    panel.plot_surface(a, b, loss, cmap="viridis", vmin=0, vmax=ticks[-1], rcount=60, ccount=60)
    panel.set(xlabel="FGSM direction", ylabel="random direction", zlabel="loss", zlim=(0, ticks[-1]))
    panel.set(zticks=ticks, **_whole_numbers(result))
    panel.set_box_aspect(None, zoom=0.85)  # leaves room for the label of the vertical axis


def _draw_contours(panel: Axes, result: Result) -> None:
    """The losses up to about twice the highest one on the way to the FGSM example, where the bump is."""
    from matplotlib.ticker import MaxNLocator

    ticks = _round_ticks(2 * max(result["way"]))
    levels = MaxNLocator(20).tick_values(0, ticks[-1])
    filled = panel.contourf(
        result["axis"], result["axis"], result["loss"], levels=levels, cmap="viridis", extend="max"
    )
    panel.plot([0, 1], [0, 0], color="white", linewidth=1.2, marker="o", markersize=4)
    for text, place in (("x", 0), ("FGSM", 1)):
        panel.annotate(text, (place, 0.08), color="white", ha="center", path_effects=_outlined())
    panel.set(xlabel="FGSM direction", ylabel="random direction", **_whole_numbers(result))
    panel.figure.colorbar(filled, ax=panel, label="loss (own scale)", ticks=ticks)


def _draw_way(panel: Axes, result: Result) -> None:
    from sora._drawing import BLUE, RED

    way = result["way"]
    fractions = [k / (len(way) - 1) for k in range(len(way))]
    panel.plot(fractions, way, color=BLUE, marker="o", markersize=3)
    panel.axhline(way[-1], color=RED, linestyle=":", label="loss at the FGSM example")
    panel.set(xlabel="from x (0) to the FGSM example (1)", ylabel="mean loss", ylim=(0, None))
    panel.set_title(f"bump: {result['bump']:.2f} above the loss at the end")
    panel.legend(frameon=False)


def _whole_numbers(result: Result) -> dict[str, Any]:
    span = round(result["axis"][-1])
    return {"xticks": range(-span, span + 1), "yticks": range(-span, span + 1)}


def _outlined() -> list[Any]:
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=2, foreground="black")]
