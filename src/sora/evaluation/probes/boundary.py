"""Which class a model sees over the plane around an image, and where attacks end up in it (Figure 1)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sora import curvature, methods
from sora._passes import bare, frozen, input_gradient
from sora._seeds import mix
from sora.attacks import fgsm, pgd
from sora.errors import UserError
from sora.evaluation._examples import Data, examples
from sora.evaluation._progress import steps
from sora.evaluation.probes._plane import Plane, axis, plane
from sora.methods import Inputs
from sora.threat import Threat

CHUNK = 512


def boundary(
    model: nn.Module,
    data: Data,
    threat: Threat,
    *,
    images: int = 4,
    span: float = 2.0,
    points: int = 61,
    seed: int = 0,
    progress: bool = False,
) -> dict[str, Any]:
    """The predicted classes around the first rightly classified images, and each attack's point.

    An attack's point is projected onto the plane; `off_plane` is the share of its perturbation that the
    picture cannot show (near 1 for random starts in high dimension).
    """
    model, found = bare(model), examples(data)
    place = next(model.parameters()).device
    values = axis(span, points)
    with frozen(model):
        x, y = found.take(torch.arange(len(found.labels)), place)
        with torch.no_grad():
            right = (model(x).argmax(1) == y).nonzero()[:, 0]
        if not len(right):
            raise UserError("the model classifies none of these images rightly; give it more, with --limit")
        reached = attack_points(model, x, y, threat, seed)
        shown, panels = right[:images].tolist(), []
        with steps("boundary", len(shown), progress) as advance:
            for k in shown:
                own = {name: points[k : k + 1] for name, points in reached.items()}
                around = plane(model, x[k : k + 1], y[k : k + 1], threat, seed)
                panels.append({"image": k, "label": int(y[k]), **_panel(model, around, own, values)})
                advance()
    return {"threat": {"norm": threat.norm, "eps": threat.eps}, "axis": values, "images": panels}


def attack_points(model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int) -> dict[str, Tensor]:
    """What FGSM, FGSM-RS, PGD-10 and SORA make of a batch; SORA's step follows this batch's curvature."""
    generator = torch.Generator(x.device).manual_seed(mix(seed, 1))
    noise = threat.random_start(x, generator), torch.rand(x.shape, generator=generator, device=x.device)
    batch = Inputs(x, y, noise)
    sora, rs = (methods.create(name, threat).to(x.device) for name in ("sora", "fgsm-rs"))
    g, _ = input_gradient(model, x + noise[0], y)
    g_adv, _ = input_gradient(model, threat.clamp(x + noise[0] + threat.direction(g) * threat.eps), y)
    hyper: Any = sora.hyper
    c = curvature.linearity(g, g_adv, threat.norm).clamp(-1, 1)
    step = curvature.optimal_step(c, hyper.alpha0, hyper.alpha_max * threat.eps)
    sora.get_buffer("alpha_star").copy_(step)
    return {
        "FGSM": fgsm(model, x, y, threat),
        "FGSM-RS": rs.craft(model, batch).x_adv,
        "PGD-10": pgd(model, x, y, threat, generator=generator),
        "SORA": sora.craft(model, batch).x_adv,
    }


def _panel(
    model: nn.Module, around: Plane, reached: dict[str, Tensor], values: list[float]
) -> dict[str, Any]:
    x = around.x
    grid = torch.tensor(values, dtype=x.dtype, device=x.device)
    shape = (-1, *[1] * (x.dim() - 1))
    b, a = (part.reshape(shape) for part in torch.meshgrid(grid, grid, indexing="ij"))
    with torch.no_grad():
        parts = zip(torch.split(a, CHUNK), torch.split(b, CHUNK), strict=True)
        classes = torch.cat([model(around.at(*part)).argmax(1) for part in parts])
        points = {}
        for name, point in reached.items():
            right, up, off = around.coordinates(point)
            points[name] = {"a": right, "b": up, "off_plane": off, "class": int(model(point).argmax(1))}
    return {"classes": classes.view(len(values), len(values)).tolist(), "points": points}
