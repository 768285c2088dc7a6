"""The curvature numbers of a batch, and the paper's lemmas checked by Hessian-vector products."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from sora import curvature as theory
from sora._passes import bare, cross_entropy, frozen
from sora.evaluation._examples import Data, examples
from sora.evaluation._progress import steps
from sora.evaluation.diagnostics import diagnose
from sora.threat import Threat, flat_norm

NUMBERS = ("pertalign", "gradalign", "linearity", "altpertalign")
HALVINGS = 12  # steps from eps down to eps / 4096


def curvature(
    model: nn.Module, data: Data, threat: Threat, *, seed: int = 0, progress: bool = False
) -> dict[str, Any]:
    """Four numbers of a batch, and how well second order explains them for smaller and smaller steps.

    For each step `a` the table holds two ratios over examples (median and quartiles), both 1 in the limit of
    a smooth loss:

    - `misalignment`: `1 - PertAlign` over `(a^2/2) ||Hp - kg||^2 / ||g||^2` with `k = g.Hp / ||g||^2`;
    - `bend`: `1 - c`, c the linearity coefficient, over `-a (p.Hp) / (p.g)`, on which alpha* rests.

    Rectifiers have kinks, which a Hessian at one point cannot see: there the ratios tend to 1 only for steps
    that cross none of them.
    """
    found = examples(data)
    place = next(bare(model).parameters()).device
    x, y = found.take(torch.arange(len(found.labels)), place)
    numbers = diagnose(model, x, y, threat, NUMBERS, seed)
    precise = copy.deepcopy(bare(model)).double()  # differences of nearly equal gradients
    table = []
    with frozen(precise), steps("curvature", HALVINGS + 1, progress) as advance:
        g, p, hp = _second_order(precise, x.double(), y, threat)
        for k in range(HALVINGS + 1):
            step = threat.eps / 2**k
            table.append({"step": step} | _ratios(precise, x.double(), y, g, p, hp, step))
            advance()
    return {
        "threat": {"norm": threat.norm, "eps": threat.eps},
        "n": len(y),
        "numbers": numbers,
        "lemma": table,
    }


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).flatten(1).sum(1)


def _gradient(model: nn.Module, z: Tensor, y: Tensor) -> Tensor:
    leaf = z.detach().requires_grad_()
    with torch.enable_grad():
        loss = cross_entropy(model(leaf), y, "sum")
        return torch.autograd.grad(loss, leaf)[0]


def _second_order(model: nn.Module, x: Tensor, y: Tensor, threat: Threat) -> tuple[Tensor, Tensor, Tensor]:
    """Each example's gradient, its ascent direction p, and Hessian times p."""
    leaf = x.detach().requires_grad_()
    with torch.enable_grad():
        (g,) = torch.autograd.grad(cross_entropy(model(leaf), y, "sum"), leaf, create_graph=True)
        p = threat.direction(g.detach())
        (hp,) = torch.autograd.grad(_dot(g, p).sum(), leaf)
    return g.detach(), p, hp


def _ratios(
    model: nn.Module, x: Tensor, y: Tensor, g: Tensor, p: Tensor, hp: Tensor, step: float
) -> dict[str, Any]:
    g_adv = _gradient(model, x + step * p, y)
    cosine, defined = theory.cosine(g, g_adv)
    k = _dot(g, hp) / _dot(g, g)
    across = hp - k.view(-1, *[1] * (g.dim() - 1)) * g
    predicted = step**2 / 2 * (flat_norm(across) / flat_norm(g)).flatten().square()
    bend = 1 - _dot(p, g_adv) / _dot(p, g)
    expected = -step * _dot(p, hp) / _dot(p, g)
    return {
        "pert_align": cosine[defined].mean().item(),
        "misalignment": _quartiles(((1 - cosine) / predicted)[defined]),
        "bend": _quartiles((bend / expected)[defined]),
    }


def _quartiles(values: Tensor) -> list[float]:
    kept = values[values.isfinite()]
    if not len(kept):
        return [float("nan")] * 3
    return kept.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=kept.dtype, device=kept.device)).tolist()
