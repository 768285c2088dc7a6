"""The loss over the plane of the FGSM direction and a random direction (appendix G of the paper)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sora._passes import cross_entropy, frozen
from sora.evaluation.progress import progress_bar
from sora.probes._base import Probe, ProbedModel, Result
from sora.probes._plane import axis, grid_points, plane
from sora.probes._registry import register


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
        """Per run a surface with its contours below; each run has its own scale, in round numbers."""
        import numpy as np
        from matplotlib.ticker import MaxNLocator

        from sora._drawing import plt, save

        figure = plt.figure(figsize=(5.0 * len(results), 8.4))
        for column, (name, surface) in enumerate(results.items(), start=1):
            a, b = np.meshgrid(surface["axis"], surface["axis"])
            loss = np.array(surface["loss"])
            ticks = MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(0, loss.max())
            highest, levels = ticks[-1], MaxNLocator(20).tick_values(0, ticks[-1])
            span = round(surface["axis"][-1])
            top: Any = figure.add_subplot(2, len(results), column, projection="3d")
            top.plot_surface(a, b, loss, cmap="viridis", vmin=0, vmax=highest, rcount=60, ccount=60)
            top.set(xlabel="FGSM direction", ylabel="random direction", zlabel="loss", zlim=(0, highest))
            top.set(xticks=range(-span, span + 1), yticks=range(-span, span + 1), zticks=ticks)
            values = f"{loss.min():.2g} to {loss.max():.2g}"
            top.set_title(f"{name}: loss from {values}\n(mean of {surface['n']} images)")
            flat = figure.add_subplot(2, len(results), len(results) + column)
            filled = flat.contourf(a, b, loss, levels=levels, cmap="viridis")
            flat.plot([0, 1], [0, 0], color="white", linewidth=1.2, marker="o", markersize=4)
            flat.annotate("x", (0, 0.08), color="white", ha="center")
            flat.annotate("FGSM", (1, 0.08), color="white", ha="center")
            flat.set(xlabel="FGSM direction", ylabel="random direction", title=f"bump {surface['bump']:.2f}")
            flat.set(xticks=range(-span, span + 1), yticks=range(-span, span + 1))
            figure.colorbar(filled, ax=flat, label="loss (own scale)", ticks=ticks)
        save(figure, file)

    def sentence(self, result: Result) -> str:
        """The height of the bump."""
        return f"the loss bumps {result['bump']:.3f} above its value at FGSM's point (n = {result['n']})"
