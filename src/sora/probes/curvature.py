"""The curvature metrics of a batch, and the paper's lemmas checked by Hessian-vector products."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sora import curvature as theory
from sora import metrics
from sora._passes import cross_entropy, frozen
from sora.evaluation.progress import progress_bar
from sora.probes._base import Probe, ProbedModel, Result
from sora.probes._registry import register
from sora.threat import Threat, eps_text, flat_norm

METRICS = ("pertalign", "gradalign", "linearity", "altpertalign")
HALVINGS = 12  # steps from eps down to eps / 4096


@register(
    "curvature", "PertAlign and its relatives; the lemmas checked by Hessian-vector products", images=64
)
class Curvature(Probe[ProbedModel]):
    """Four metrics of a batch, and how well second order explains them for shorter and shorter steps."""

    def measure(self, subject: ProbedModel) -> Result:
        """The metrics, and for each step length `a` two ratios over examples (quartiles and median).

        Both ratios are 1 in the limit of a smooth loss:

        - `misalignment`: `1 - PertAlign` over `(a^2/2) ||Hp - kg||^2 / ||g||^2` with `k = g.Hp / ||g||^2`;
        - `bend`: `1 - c`, c the linearity coefficient, over `-a (p.Hp) / (p.g)`, on which alpha* is based.

        A Hessian at one point does not contain the kinks of rectifiers: with them the ratios tend to 1 only
        for steps that cross none.
        """
        threat = subject.threat
        x, y = subject.all_images()
        values = metrics.measure(subject.model, x, y, threat, METRICS, subject.seed)
        precise = copy.deepcopy(subject.network).double()  # takes differences of nearly equal gradients
        lemma = []
        with frozen(precise), progress_bar("curvature", HALVINGS + 1, subject.progress) as advance:
            g, p, hp = _second_order(precise, x.double(), y, threat)
            for k in range(HALVINGS + 1):
                length = threat.eps / 2**k
                lemma.append({"step": length} | _ratios(precise, x.double(), y, g, p, hp, length))
                advance()
        return {
            "threat": {"norm": threat.norm, "eps": threat.eps},
            "n": len(y),
            "numbers": values,
            "lemma": lemma,
        }

    def picture(self, results: Mapping[str, Result], file: Path) -> None:
        """The ratios over the length of the step, one panel per run, all on the same axes."""
        from sora._drawing import BLUE, GREY, RED, panels, save

        lines = (("misalignment", RED, "1 - PertAlign"), ("bend", BLUE, "1 - linearity"))
        figure, axes = panels(len(results), width=6.4, height=4.8)
        figure.set_layout_engine("constrained")
        for panel, (name, result) in zip(axes, results.items(), strict=True):
            eps = result["threat"]["eps"]
            steps = [row["step"] / eps for row in result["lemma"]]
            for key, colour, label in lines:
                low, middle, high = zip(*(_with_nan(row[key]) for row in result["lemma"]), strict=True)
                panel.plot(steps, middle, color=colour, marker="o", markersize=3, label=f"{label}: median")
                panel.fill_between(steps, low, high, color=colour, alpha=0.15, label=f"{label}: middle half")
            panel.axhline(1, color=GREY, linewidth=0.8, label="1: second order explains all")
            panel.set_yscale("symlog", linthresh=2)
            text = ", ".join(f"{key} {value:.2f}" for key, value in result["numbers"].items())
            panel.set(xscale="log", xlabel=f"step in multiples of eps = {eps_text(eps)}")
            panel.set_ylabel("measured / predicted from the Hessian")
            panel.yaxis.set_major_formatter("{x:g}")
            panel.set_title(f"{name} ({result['n']} images)\n{text}", fontsize=10)
        ends = [
            value
            for result in results.values()
            for row in result["lemma"]
            for key, _, _ in lines
            for value in _with_nan(row[key])
            if math.isfinite(value)
        ]
        for panel in axes:
            panel.set_ylim(min([-2.0, *(1.5 * end for end in ends)]), 2 * max([2.0, *ends]))
        handles, labels = axes[0].get_legend_handles_labels()
        columns = 3 if len(results) > 1 else 2
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=10)
        save(figure, file)

    def sentence(self, result: Result) -> str:
        """The metrics, and the ratios' medians at the shortest step."""
        shortest = result["lemma"][-1]
        values = ", ".join(f"{name} {value:.3f}" for name, value in result["numbers"].items())
        misalignment, bend = (_with_nan(shortest[key])[1] for key in ("misalignment", "bend"))
        return (
            f"{values}; measured over second order at eps/4096: 1 - PertAlign "
            f"{misalignment:.3f}, 1 - linearity {bend:.3f} (medians)"
        )


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
    model: nn.Module, x: Tensor, y: Tensor, g: Tensor, p: Tensor, hp: Tensor, length: float
) -> dict[str, Any]:
    g_adv = _gradient(model, x + length * p, y)
    cosine, defined = theory.cosine(g, g_adv)
    k = _dot(g, hp) / _dot(g, g)
    across = hp - k.view(-1, *[1] * (g.dim() - 1)) * g
    predicted = length**2 / 2 * (flat_norm(across) / flat_norm(g)).flatten().square()
    bend = 1 - _dot(p, g_adv) / _dot(p, g)
    expected = -length * _dot(p, hp) / _dot(p, g)
    return {
        "pert_align": cosine[defined].mean().item(),
        "misalignment": _quartiles(((1 - cosine) / predicted)[defined]),
        "bend": _quartiles((bend / expected)[defined]),
    }


def _quartiles(values: Tensor) -> list[float]:
    finite = values[values.isfinite()]
    if not len(finite):
        return [float("nan")] * 3
    quarters = torch.tensor([0.25, 0.5, 0.75], dtype=finite.dtype, device=finite.device)
    return finite.quantile(quarters).tolist()


def _with_nan(values: list[float | None]) -> list[float]:
    return [float("nan") if value is None else value for value in values]
