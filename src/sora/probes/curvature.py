"""The curvature metrics of a batch, and the paper's theory checked on trained weights and their images."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sora import metrics
from sora._devices import device_for_float64
from sora._passes import frozen
from sora.errors import UserError
from sora.evaluation.progress import progress_bar
from sora.figures.description import BLUE, GREEN, GREY, RED
from sora.probes import _theory as theory
from sora.probes._base import Probe, ProbedModel, Result, register
from sora.threat import eps_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

METRICS = ("pertalign", "gradalign", "linearity", "altpertalign")
HALVINGS = 12  # steps from eps down to eps / 4096
LENGTHS = ("step", "step", "step", "alpha*")  # on the panels' horizontal axes
SHORTEST = (0.7 / 2**HALVINGS, 0.7 / 2**HALVINGS, 0.01, 0.01)  # where these axes begin, in multiples of eps
RATIOS = {"misalignment": "1 - PertAlign", "bend": "1 - linearity", "altpertalign": "1 - AltPertAlign"}


@register("curvature", "PertAlign and its relatives; the paper's theory checked on real images", images=64)
class Curvature(Probe[ProbedModel]):
    """Four metrics of a batch, and how well the paper's theory explains shorter and shorter steps."""

    def measure(self, subject: ProbedModel) -> Result:
        """The metrics; `lemma`, one row per step length `a`; `peak`, the loss along the attack.

        A row has quartiles over the examples of three ratios that are 1 in the limit of a smooth loss:

        - `misalignment`: `1 - PertAlign` over `(a^2/2) ||Hp - kg||^2 / ||g||^2` with `k = g.Hp / ||g||^2`;
        - `bend`: `1 - c`, c the linearity coefficient, over `-a (p.Hp) / (p.g)`, on which alpha* is based;
        - `altpertalign`: `1 - AltPertAlign` over `a (g.Hp / ||g||^2 - p.Hp / ||g||_1)`, the last line of its
          proof. The lemma is printed with the opposite sign: `altpertalign_printed_sign`, -1 in the limit.

        `bound` has the shares of examples for which the paper's bounds on the misalignment hold.

        A Hessian at one point does not contain the kinks of rectifiers: with them the ratios tend to 1 only
        for steps that cross none.
        """
        threat = subject.threat
        if not threat.eps > 0:
            raise UserError("eps is 0; the curvature probe measures steps and needs an eps above 0")
        x, y = subject.all_images()
        values = metrics.measure(subject.model, x, y, threat, METRICS, subject.seed)
        device = device_for_float64(subject.device)  # for differences of nearly equal gradients
        precise, x, y = (
            copy.deepcopy(subject.network).to(device).double(),
            x.to(device).double(),
            y.to(device),
        )
        lemma = []
        with frozen(precise), progress_bar("curvature", HALVINGS + 2, subject.progress) as advance:
            local = theory.second_order(precise, x, y, threat, subject.seed)
            lengths, curve = theory.loss_curve(local)
            peak = theory.check_peak(local, lengths, curve)
            advance()
            first = theory.first_peaks(lengths, curve)
            for k in range(HALVINGS + 1):
                length = threat.eps / 2**k
                lemma.append({"step": length} | theory.check_step(local, first, length))
                advance()
        return {
            "threat": {"norm": threat.norm, "eps": threat.eps},
            "n": len(y),
            "numbers": values,
            "lemma": lemma,
            "peak": peak,
        }

    def picture(self, results: Mapping[str, Result], file: Path) -> None:
        """Four panels per run in a row: ratios, bound, mean loss along the step, alpha* against the peaks."""
        from matplotlib.figure import Figure

        from sora.figures import on_paper

        figure = Figure(figsize=(21, 4.6 * len(results) + 1.4), layout="constrained")
        rows = figure.subplots(len(results), 4, squeeze=False)
        for axes, (name, result) in zip(rows, results.items(), strict=True):
            _draw_ratios(axes[0], result)
            _draw_bound(axes[1], result)
            _draw_mean_loss(axes[2], result)
            _draw_peaks(axes[3], result)
            text = ", ".join(f"{key} {value:.2f}" for key, value in _with_nan(result["numbers"]).items())
            axes[0].set_title(f"{name} ({result['n']} images)\n{text}", fontsize=10)
            unit = f"in multiples of eps = {eps_text(result['threat']['eps'])}"
            for panel, length, shortest in zip(axes, LENGTHS, SHORTEST, strict=True):
                panel.set(xscale="log", xlabel=f"{length} {unit}", xlim=(shortest, 2 * theory.REACH))
                panel.xaxis.set_major_formatter("{x:g}")
                panel.grid(color="#eeeeee", linewidth=0.8)
        for column, limits in ((0, _ratio_limits(results)), (2, _loss_limits(results))):
            for panel in rows[:, column]:
                panel.set_ylim(*limits)
        for panel, columns in zip(rows[-1], (2, 1, 1, 1), strict=True):
            place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14)}  # below, where it hides nothing
            panel.legend(**place, ncols=columns, fontsize=9, frameon=False)
        on_paper.write(figure, file)

    def sentence(self, result: Result) -> str:
        """What the numbers mean for a reader who does not know the theory; the file has all of them."""
        longest, shortest = result["lemma"][0], result["lemma"][-1]
        values = ", ".join(f"{name} {value:.2f}" for name, value in _with_nan(result["numbers"]).items())
        ratios = [_numbers(row["misalignment"])[1] for row in (longest, shortest)]
        holds = _numbers([longest["bound"]["holds"]])[0]
        agree = _with_nan(result["peak"]["agree"])
        return (
            f"{values} (1: the gradients agree); 1 - PertAlign is {ratios[0]:.2f} times what the Hessian "
            f"predicts for a step of eps, {ratios[1]:.2f} times for eps/{2**HALVINGS}; the paper's bound on "
            f"it holds for {holds:.0%} of images at eps; SORA's step alpha* is within a factor "
            f"{agree['factor']:g} of the first peak of the loss for {agree['first_peak']:.0%} of images "
            f"(n = {result['n']})"
        )


def _steps(result: Result) -> list[float]:
    return [row["step"] / result["threat"]["eps"] for row in result["lemma"]]


def _draw_ratios(panel: Axes, result: Result) -> None:
    for (key, label), colour in zip(RATIOS.items(), (RED, BLUE, GREEN), strict=True):
        low, middle, high = zip(*(_numbers(row[key]) for row in result["lemma"]), strict=True)
        panel.plot(_steps(result), middle, color=colour, marker="o", markersize=3, label=f"{label}: median")
        panel.fill_between(_steps(result), low, high, color=colour, alpha=0.12, label=f"{label}: middle half")
    panel.axhline(1, color=GREY, linewidth=0.8, label="1: second order explains all")
    panel.set_yscale("symlog", linthresh=2)
    panel.set_ylabel("measured / predicted from the Hessian")
    panel.yaxis.set_major_formatter("{x:g}")


def _draw_bound(panel: Axes, result: Result) -> None:
    for key, label, colour in (
        ("holds", r"below $a^2/2\;(\|H\|^2 - k^2)$", RED),
        ("holds_loose", r"below $a^2/2\;\|H\|^2$", BLUE),
    ):
        shares = [100 * _numbers([row["bound"][key]])[0] for row in result["lemma"]]
        panel.plot(_steps(result), shares, color=colour, marker="o", markersize=3, label=label)
    panel.set(ylim=(-4, 104), ylabel="images whose 1 - PertAlign is below the bound (%)")
    panel.set_title("upper bound on the misalignment,\nsteps along the gradient", fontsize=10)


def _draw_mean_loss(panel: Axes, result: Result) -> None:
    eps, mean = result["threat"]["eps"], _with_nan(result["peak"]["mean_loss"])
    lengths, loss = mean["lengths"], _numbers(mean["loss"])
    parabola = [mean["at_x"] + a * mean["slope"] + a * a / 2 * mean["curvature"] for a in lengths]
    panel.plot([a / eps for a in lengths], loss, color=BLUE, label="measured")
    panel.plot(
        [a / eps for a in lengths],
        parabola,
        color=RED,
        linestyle="--",
        label=f"parabola through both gradients of a step of {theory.ALPHA0}",
    )
    panel.axhline(mean["at_x"], color=GREY, linewidth=0.8, label="loss at x")
    panel.axvline(mean["alpha_star"] / eps, color=RED, linewidth=0.8, label="alpha*: predicted peak")
    panel.axvline(mean["first_peak"] / eps, color=BLUE, linestyle=":", label="first measured peak")
    panel.set(yscale="log", ylabel="mean loss")
    panel.yaxis.set_major_formatter("{x:g}")
    panel.set_title("mean loss along the attack", fontsize=10)


def _draw_peaks(panel: Axes, result: Result) -> None:
    eps, peak = result["threat"]["eps"], result["peak"]
    images = {key: [value / eps for value in _numbers(row)] for key, row in peak["images"].items()}
    series = (("highest_point", "highest point", BLUE, "s"), ("first_peak", "first peak", RED, "o"))
    for key, label, colour, marker in series:
        fill, size = ("none", 40) if marker == "s" else (colour, 16)
        panel.scatter(
            images["alpha_star"],
            images[key],
            s=size,
            marker=marker,
            facecolors=fill,
            edgecolors=colour,
            alpha=0.6,
            label=f"{label} of the measured loss",
        )
    ends = [SHORTEST[-1], 2 * theory.REACH]
    panel.plot(ends, ends, color=GREY, linewidth=0.8, label="as predicted")
    panel.set(yscale="log", ylim=ends, ylabel="measured, in multiples of eps")
    panel.yaxis.set_major_formatter("{x:g}")
    agree = {key: f"{100 * value:.0f} %" for key, value in _with_nan(peak["agree"]).items()}
    panel.set_title(
        f"alpha* and the peak of each image's loss; within a factor\n"
        f"{theory.AGREE:g}: first peak {agree['first_peak']}, highest point {agree['highest_point']}",
        fontsize=10,
    )


def _ratio_limits(results: Mapping[str, Result]) -> tuple[float, float]:
    rows = [row for result in results.values() for row in result["lemma"]]
    ends = [value for row in rows for key in RATIOS for value in _numbers(row[key]) if math.isfinite(value)]
    return min([-2.0, *(1.5 * end for end in ends)]), 2 * max([2.0, *ends])


def _loss_limits(results: Mapping[str, Result]) -> tuple[float, float]:
    means = [result["peak"]["mean_loss"] for result in results.values()]
    losses = [value for mean in means for value in _numbers([mean["at_x"], *mean["loss"]])]
    positive = [value for value in losses if math.isfinite(value) and value > 0] or [1.0]
    return min(positive) / 1.2, max(positive) * 1.2


def _numbers(values: Sequence[float | None]) -> list[float]:
    """The values with NaN where a stored result has none."""
    return [float("nan") if value is None else value for value in values]


def _with_nan(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: float("nan") if value is None else value for key, value in values.items()}
