"""The predicted class over the plane around an image, and where attacks end up in it (Figure 1)."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sora import curvature, methods
from sora._passes import frozen, input_gradient
from sora._seeds import generator_for, mix, uniform
from sora.attacks import fgsm, pgd
from sora.errors import UserError
from sora.evaluation.progress import progress_bar
from sora.figures import Figure, Item, Panel, Points, Regions
from sora.methods import Inputs
from sora.probes._base import Probe, ProbedModel, Result, register
from sora.probes.landscape import Plane, axes, axis, plane
from sora.threat import L2, Threat

CHUNK = 512  # grid points per forward pass
# Hollow and of different sizes, so that points at one place can be told apart.
MARKERS = {"FGSM": ("cross", 8.0), "FGSM-RS": ("triangle", 11.0), "PGD-10": ("square", 8.0)}
MARKERS |= {"SORA": ("circle", 17.0)}
# Ten strong colours, then their pale variants, all light enough for markers to stand out.
STRONG = (
    "#5799c7", "#ff9f4a", "#61b861", "#e05d5e", "#af8dce",
    "#a98078", "#ea99d1", "#9f9f9f", "#cdce59", "#51cedb",
)  # fmt: skip
PALE = (
    "#c2d5ee", "#ffcc9a", "#b2e7a7", "#ffb2b0", "#d4c4e0",
    "#d3b5af", "#f9c8dd", "#d5d5d5", "#e4e4aa", "#b6e3ec",
)  # fmt: skip


@register(
    "boundary",
    "the predicted class over the same plane, with the points that attacks reach",
    images=64,
    figures=(1,),
)
@dataclass(frozen=True)
class Boundary(Probe[ProbedModel]):
    """The predicted classes around the first correctly classified images, and where each attack ends."""

    panels: int = 4  # images shown
    spare: int = 4  # further images to measure, so that runs with other mistakes can show the same ones
    span: float = 2.0  # the grid goes from -span to span along both directions
    points: int = 61  # per direction

    def measure(self, subject: ProbedModel) -> Result:
        """Find the class at each grid point, and project the attacks' points onto the plane.

        `off_plane` is the share of an attack's perturbation that the picture cannot show (near 1 for random
        starts in high dimension). `fooled` counts, for each attack, the images among the `correct` ones
        whose prediction it changes.
        """
        model, threat, seed = subject.bare_model, subject.threat, subject.seed
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
                    about = {"image": subject.position(k), "label": int(y[k])}
                    images.append(about | _image(model, around, points, values))
                    advance()
        return {
            **subject.facts(len(y)),
            "correct": len(correct),
            "fooled": {name: int(wrong[correct].sum()) for name, wrong in missed.items()},
            "axis": values,
            "classes": list(subject.classes),
            "images": images,
        }

    def figure(self, results: Mapping[str, Result]) -> Figure:
        """Draw a row of panels per run, a panel per image; if each shows one image, all in one row."""
        chosen = _same_images(results, self.panels)
        columns = max(map(len, chosen.values()))
        images = [image for own in chosen.values() for image in own]
        seen = sorted({c for image in images for row in image["classes"] for c in row})
        colours = dict(zip(seen, itertools.cycle(STRONG + PALE), strict=False))  # the same in every panel
        panels: list[Panel | None] = []
        for name, result in results.items():
            row = [_panel(name, result, image, colours) for image in chosen[name]]
            panels += [*row, *[None] * (columns - len(row))]
        text = "white outline: the attack changes the prediction; black outline: it does not"
        size: Any = {"columns": len(results) if columns == 1 else columns, "width": 3.6, "height": 3.7}
        return Figure(panels, legend_below=text, caption=f"{text}.", **size)

    def sentence(self, result: Result) -> str:
        """State how many of the correctly classified images each attack fools."""
        counts = ", ".join(f"{count} by {name}" for name, count in result["fooled"].items())
        shown = min(self.panels, len(result["images"]))
        return (
            f"{result['correct']} of {result['n']} images are classified correctly; of these, attacks change"
            f" {counts}; the picture shows the first{f' {shown}' if shown > 1 else ''}"
        )


def _same_images(results: Mapping[str, Result], count: int) -> dict[str, list[Result]]:
    """Return the same `count` images for each run; its own where the runs have none in common."""
    common = set.intersection(*({image["image"] for image in own["images"]} for own in results.values()))

    def rank(image: Result) -> tuple[bool, int]:
        return image["image"] not in common, image["image"]

    return {name: sorted(result["images"], key=rank)[:count] for name, result in results.items()}


def attack_points(model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int) -> dict[str, Tensor]:
    """Return the examples of FGSM, FGSM-RS, PGD-10 and SORA, whose step follows the batch's curvature."""
    generator = generator_for(x.device, mix(seed, 1))
    start = threat.random_start(x, generator)
    lengths = uniform(x.new_empty(x.shape), 0, 1, generator)
    on_sphere = threat.sphere(x, generator) if isinstance(threat, L2) else start  # as SORA draws it
    sora, rs = (methods.create(name, threat).to(x.device) for name in ("sora", "fgsm-rs"))
    noisy = x + on_sphere
    g, _ = input_gradient(model, noisy, y)
    g_adv, _ = input_gradient(model, threat.step(noisy, g, threat.eps), y)
    hyper: Any = sora.hyper
    c = curvature.linearity(g, g_adv, threat.norm).clamp(-1, 1)
    length = curvature.optimal_step(c, hyper.alpha0, hyper.alpha_max * threat.eps)
    alpha_star = sora.get_buffer("alpha_star")
    alpha_star.copy_(torch.where(length.isfinite(), length, alpha_star))  # NaN if no gradient is defined
    return {
        "FGSM": fgsm(model, x, y, threat),
        "FGSM-RS": rs.craft(model, Inputs(x, y, (start,))).x_adv,
        "PGD-10": pgd(model, x, y, threat, generator=generator),
        "SORA": sora.craft(model, Inputs(x, y, (on_sphere, lengths))).x_adv,
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


def _panel(name: str, result: Result, image: Mapping[str, Any], colours: Mapping[int, str]) -> Panel:
    values, own, label = result["axis"], result.get("classes", ()), image["label"]
    names = {c: text if not text.isdigit() else f"class {text}" for c, text in enumerate(own)}
    items: list[Item] = [Regions(values, values, image["classes"], colours, label, names)]
    for attack, (marker, size) in {"the image": ("plus", 9.0), **MARKERS}.items():
        look: dict[str, Any] = {"marker": marker, "size": size, "hollow": True}
        items.append(Points([None], [None], attack, "#000000", **look))  # the entry of the legend
        point = image["points"].get(attack, {"a": 0.0, "b": 0.0, "class": image["label"]})
        fooled = point["class"] != image["label"]
        look |= {"colour": "#ffffff", "outline": "black"} if fooled else {"colour": "#000000"}
        items.append(Points([point["a"]], [point["b"]], attack, in_legend=False, **look))
    fooling = [attack for attack, point in image["points"].items() if point["class"] != label]
    title = f"{name}: image {image['image']}, {names.get(label, f'class {label}')}\n"
    title += f"changed by {', '.join(fooling)}" if fooling else "no attack changes the prediction"
    return Panel(items, title, *axes(values), square=True)
