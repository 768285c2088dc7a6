"""The predicted class over the plane around an image, and where attacks end up in it (Figure 1)."""

from __future__ import annotations

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

CHUNK = 512  # grid points per forward pass
MARKERS = {"FGSM": "X", "FGSM-RS": "^", "PGD-10": "*", "SORA": "o"}


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
        starts in high dimension).
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
            shown, images = correct[: self.panels + self.spare].tolist(), []
            with progress_bar("boundary", len(shown), subject.progress) as advance:
                for k in shown:
                    points = {name: batch[k : k + 1] for name, batch in reached.items()}
                    around = plane(model, x[k : k + 1], y[k : k + 1], threat, seed)
                    images.append({"image": k, "label": int(y[k]), **_image(model, around, points, values)})
                    advance()
        return {"threat": {"norm": threat.norm, "eps": threat.eps}, "axis": values, "images": images}

    def picture(self, results: Mapping[str, Result], file: Path) -> None:
        """One row of panels per run, one panel per image."""
        from matplotlib.patches import Patch

        from sora._drawing import plt, save

        chosen = _same_images(results, self.panels)
        rows, columns = len(results), max(map(len, chosen.values()))
        figure, grid = plt.subplots(rows, columns, figsize=(3.6 * columns, 3.7 * rows), squeeze=False)
        figure.set_layout_engine("constrained")
        for row, (name, result) in zip(grid, results.items(), strict=True):
            for panel in row[len(chosen[name]) :]:
                panel.axis("off")
            for panel, image in zip(row, chosen[name], strict=False):
                _draw(panel, result["axis"], image)
                panel.set_title(f"{name}: image {image['image']}, class {image['label']}", fontsize=9)
        handles, labels = grid[0][0].get_legend_handles_labels()
        seen = {c for images in chosen.values() for image in images for r in image["classes"] for c in r}
        handles += [Patch(color=plt.get_cmap("tab20")(c % 20), alpha=0.55) for c in sorted(seen)]
        labels += [f"class {c}" for c in sorted(seen)]
        text = "white: the attack changed the prediction, black: it did not"
        figure.legend(
            handles,
            labels,
            loc="outside lower center",
            ncols=min(len(labels), 3 * columns),
            frameon=False,
            title=text,
        )
        save(figure, file)

    def sentence(self, result: Result) -> str:
        """How many of the shown images each attack fools."""
        images = result["images"][: self.panels]
        fooled = {
            name: sum(image["points"][name]["class"] != image["label"] for image in images)
            for name in images[0]["points"]
        }
        counts = ", ".join(f"{name} {count}" for name, count in fooled.items())
        return f"of {len(images)} correctly classified images, fooled by {counts}"


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


def _draw(panel: Axes, axis: list[float], image: Mapping[str, Any]) -> None:
    import numpy as np
    from matplotlib.colors import BoundaryNorm

    classes = np.array(image["classes"])
    norm = BoundaryNorm(np.arange(-0.5, 20.5), 20)  # a class has the same colour in every panel
    panel.pcolormesh(axis, axis, classes % 20, cmap="tab20", norm=norm, alpha=0.55, shading="nearest")
    panel.contour(axis, axis, classes == image["label"], levels=[0.5], colors="black", linewidths=0.8)
    panel.plot(0, 0, "k+", markersize=9, label="x")
    for name, point in image["points"].items():
        fooled = point["class"] != image["label"]
        panel.plot(
            point["a"], point["b"], MARKERS[name], color="black", markersize=8, label=name,
            markerfacecolor="white" if fooled else "black",
        )  # fmt: skip
    panel.set(xlabel="FGSM direction", ylabel="random direction", aspect="equal")
