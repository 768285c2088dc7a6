"""The predicted class over the plane around an image, and where attacks end up in it (Figure 1)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sora import curvature, methods
from sora._passes import frozen, input_gradient
from sora._seeds import mix
from sora.attacks import fgsm, pgd
from sora.errors import UserError
from sora.evaluation.progress import progress_bar
from sora.methods import Inputs
from sora.probes._base import Probe, ProbedModel, Result
from sora.probes._plane import Plane, axis, plane
from sora.probes._registry import register
from sora.threat import Threat

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Colour = tuple[float, ...]  # red, green, blue
CHUNK = 512  # grid points per forward pass
# Hollow and of different sizes, so that points at one place can be told apart.
MARKERS = {"FGSM": ("x", 8), "FGSM-RS": ("^", 11), "PGD-10": ("s", 8), "SORA": ("o", 17)}


@register(
    "boundary", "the predicted class over the same plane, with the points that attacks reach", images=64
)
@dataclass(frozen=True)
class Boundary(Probe[ProbedModel]):
    """The predicted classes around the first correctly classified images, and the end point of each attack.

    Attributes:
        panels: Number of images shown.
        spare: Further images that are measured, so that runs with other mistakes can show the same ones.
        span: The grid goes from -span to span along both directions.
        points: Grid points per direction.
    """

    panels: int = 4
    spare: int = 4
    span: float = 2.0
    points: int = 61

    def measure(self, subject: ProbedModel) -> Result:
        """The class at each grid point, and the attacks' points projected onto the plane.

        `off_plane` is the share of an attack's perturbation that the picture cannot show (near 1 for random
        starts in high dimension). `fooled` counts, for each attack, the images among the `correct` ones
        whose prediction it changes.
        """
        model, threat, seed = subject.network, subject.threat, subject.seed
        values = axis(self.span, self.points)
        with frozen(model):
            x, y = subject.all_images()
            with torch.no_grad():
                correct = (model(x).argmax(1) == y).nonzero()[:, 0]
            if not len(correct):
                raise UserError("the model classifies none of these images correctly; use more, with --limit")
            reached = attack_points(model, x, y, threat, seed)
            with torch.no_grad():
                missed = {name: model(points).argmax(1) != y for name, points in reached.items()}
            shown, images = correct[: self.panels + self.spare].tolist(), []
            with progress_bar("boundary", len(shown), subject.progress) as advance:
                for k in shown:
                    points = {name: batch[k : k + 1] for name, batch in reached.items()}
                    around = plane(model, x[k : k + 1], y[k : k + 1], threat, seed)
                    images.append({"image": k, "label": int(y[k]), **_image(model, around, points, values)})
                    advance()
        return {
            "threat": {"norm": threat.norm, "eps": threat.eps},
            "n": len(y),
            "correct": len(correct),
            "fooled": {name: int(wrong[correct].sum()) for name, wrong in missed.items()},
            "axis": values,
            "images": images,
        }

    def picture(self, results: Mapping[str, Result], file: Path) -> None:
        """One row of panels per run, one panel per image."""
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

        from sora._drawing import legend_below, plt, save

        chosen = _same_images(results, self.panels)
        rows, columns = len(results), max(map(len, chosen.values()))
        figure, grid = plt.subplots(rows, columns, figsize=(3.6 * columns, 3.7 * rows), squeeze=False)
        figure.set_layout_engine("constrained")
        seen = sorted(
            {c for images in chosen.values() for image in images for r in image["classes"] for c in r}
        )
        colours = dict(zip(seen, itertools.cycle(_palette()), strict=False))  # the same in every panel
        for row, (name, result) in zip(grid, results.items(), strict=True):
            for panel in row[len(chosen[name]) :]:
                panel.axis("off")
            for panel, image in zip(row, chosen[name], strict=False):
                _draw(panel, result["axis"], image, colours)
                panel.set_title(f"{name}: image {image['image']}, class {image['label']}", fontsize=9)
        markers = {"the image": ("+", 9), **MARKERS}
        entries: dict[str, Any] = {
            name: Line2D([], [], **_marker(marker, size, "black")) for name, (marker, size) in markers.items()
        }
        entries |= {f"predicted: class {c}": Patch(color=colour) for c, colour in colours.items()}
        text = "white outline: the attack changes the prediction; black outline: it does not"
        legend_below(figure, entries, title=text)
        save(figure, file)

    def sentence(self, result: Result) -> str:
        """How many of the correctly classified images each attack fools."""
        counts = ", ".join(f"{count} by {name}" for name, count in result["fooled"].items())
        return (
            f"of {result['n']} images {result['correct']} are classified correctly; of these are fooled:"
            f" {counts}; the picture shows the first {min(self.panels, len(result['images']))}"
        )


def _same_images(results: Mapping[str, Result], count: int) -> dict[str, list[Result]]:
    """For each run the same `count` images; its own where the runs have none in common."""
    measured = [{image["image"] for image in result["images"]} for result in results.values()]
    common = set.intersection(*measured)
    return {
        name: sorted(result["images"], key=lambda image: (image["image"] not in common, image["image"]))[
            :count
        ]
        for name, result in results.items()
    }


def attack_points(model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int) -> dict[str, Tensor]:
    """The examples of FGSM, FGSM-RS, PGD-10 and SORA; SORA's step follows the curvature of this batch."""
    generator = torch.Generator(x.device).manual_seed(mix(seed, 1))
    noise = threat.random_start(x, generator), torch.rand(x.shape, generator=generator, device=x.device)
    batch = Inputs(x, y, noise)
    sora, rs = (methods.create(name, threat).to(x.device) for name in ("sora", "fgsm-rs"))
    noisy = x + noise[0]
    g, _ = input_gradient(model, noisy, y)
    g_adv, _ = input_gradient(model, threat.step(noisy, g, threat.eps), y)
    hyper: Any = sora.hyper
    c = curvature.linearity(g, g_adv, threat.norm).clamp(-1, 1)
    length = curvature.optimal_step(c, hyper.alpha0, hyper.alpha_max * threat.eps)
    sora.get_buffer("alpha_star").copy_(length)
    return {
        "FGSM": fgsm(model, x, y, threat),
        "FGSM-RS": rs.craft(model, batch).x_adv,
        "PGD-10": pgd(model, x, y, threat, generator=generator),
        "SORA": sora.craft(model, batch).x_adv,
    }


def _image(model: nn.Module, around: Plane, reached: dict[str, Tensor], values: list[float]) -> Result:
    x = around.x
    grid = torch.tensor(values, dtype=x.dtype, device=x.device)
    shape = (-1, *[1] * (x.dim() - 1))
    b, a = (part.reshape(shape) for part in torch.meshgrid(grid, grid, indexing="ij"))
    with torch.no_grad():
        chunks = zip(torch.split(a, CHUNK), torch.split(b, CHUNK), strict=True)
        classes = torch.cat([model(around.at(*chunk)).argmax(1) for chunk in chunks])
        points = {}
        for name, point in reached.items():
            right, up, off = around.coordinates(point)
            points[name] = {"a": right, "b": up, "off_plane": off, "class": int(model(point).argmax(1))}
    return {"classes": classes.view(len(values), len(values)).tolist(), "points": points}


def _palette() -> list[Colour]:
    """Ten strong colours, then their pale variants, all mixed with white so that markers stand out."""
    from matplotlib import colormaps

    strong, pale = colormaps["tab20"].colors[::2], colormaps["tab20"].colors[1::2]  # type: ignore[attr-defined]
    return [tuple(0.25 + 0.75 * part for part in colour) for colour in (*strong, *pale)]


def _draw(panel: Axes, axis: list[float], image: Mapping[str, Any], colours: Mapping[int, Colour]) -> None:
    import numpy as np
    from matplotlib.patheffects import withStroke

    classes = np.array(image["classes"])
    pixels = np.array([[colours[c] for c in row] for row in image["classes"]])
    half = (axis[1] - axis[0]) / 2
    low, high = axis[0] - half, axis[-1] + half
    panel.imshow(pixels, origin="lower", extent=(low, high, low, high), interpolation="nearest")
    panel.contour(axis, axis, classes == image["label"], levels=[0.5], colors="black", linewidths=0.8)
    panel.plot(0, 0, **_marker("+", 9, "black"))
    for name, point in image["points"].items():
        marker, size = MARKERS[name]
        fooled = point["class"] != image["label"]
        (line,) = panel.plot(point["a"], point["b"], **_marker(marker, size, "white" if fooled else "black"))
        if fooled:
            line.set_path_effects([withStroke(linewidth=3.2, foreground="black")])
    ticks: Any = range(math.ceil(axis[0]), math.floor(axis[-1]) + 1)
    panel.set(xlabel="FGSM direction", ylabel="random direction", xticks=ticks, yticks=ticks)


def _marker(marker: str, size: float, colour: str) -> dict[str, Any]:
    return {
        "marker": marker,
        "markersize": size,
        "markerfacecolor": "none",
        "markeredgecolor": colour,
        "markeredgewidth": 1.6,
        "linestyle": "none",
    }
