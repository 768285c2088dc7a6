"""The curvature metrics of a batch, and the paper's theory checked on trained weights and their images."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from typing import Any

from sora import metrics
from sora._devices import device_for_float64
from sora._passes import frozen
from sora.errors import UserError
from sora.evaluation.progress import progress_bar
from sora.figures import BLUE, GREEN, GREY, RED, Axis, Figure, Item, Line, Panel, Points, Rule
from sora.probes import _second_order as theory
from sora.probes._base import Probe, ProbedModel, Result, register
from sora.threat import eps_text

METRICS = ("pertalign", "gradalign", "linearity", "altpertalign")
HALVINGS = 12  # steps from eps down to eps / 4096
LONGEST = 2 * theory.REACH  # where the axes of lengths end, in multiples of eps
SHORT, SHORTEST = 0.01, 0.7 / 2**HALVINGS  # where they begin
RATIOS = {
    "misalignment": ("1 - PertAlign", RED),
    "bend": ("1 - linearity", BLUE),
    "altpertalign": ("1 - AltPertAlign", GREEN),
}


@register("curvature", "PertAlign and its relatives; the paper's theory checked on real images", images=64)
class Theory(Probe[ProbedModel]):
    """Four metrics of a batch, and how well the paper's theory explains shorter and shorter steps."""

    def measure(self, subject: ProbedModel) -> Result:
        """Measure the metrics; `lemma`, one row per step length `a`; `peak`, the loss along the attack.

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
        model = copy.deepcopy(subject.bare_model).to(device).double()
        x, y, lemma = x.to(device).double(), y.to(device), []
        with frozen(model), progress_bar("curvature", HALVINGS + 2, subject.progress) as advance:
            local = theory.second_order(model, x, y, threat, subject.seed)
            lengths, curve = theory.loss_curve(local)
            peak = theory.check_peak(local, lengths, curve)
            advance()
            first = theory.first_peaks(lengths, curve)
            for k in range(HALVINGS + 1):
                length = threat.eps / 2**k
                lemma.append({"step": length} | theory.check_step(local, first, length))
                advance()
        return subject.facts(len(y)) | {"numbers": values, "lemma": lemma, "peak": peak}

    def figure(self, results: Mapping[str, Result]) -> Figure:
        """Draw a row per run: ratios, bound, mean loss along the step, and alpha* against the peaks."""
        with_nan = {name: _with_nan(result) for name, result in results.items()}
        ratio_axis, loss_axis = _ratio_axis(with_nan.values()), _loss_axis(with_nan.values())
        panels: list[Panel] = []
        for name, result in with_nan.items():
            panels += [_ratios(name, result, ratio_axis), _bound(result)]
            panels += [_mean_loss(result, loss_axis), _peaks(result)]
        return Figure(panels, columns=4, width=5.3, height=4.8)

    def sentence(self, result: Result) -> str:
        """Say what the numbers mean to a reader who does not know the theory."""
        result = _with_nan(result)
        longest, shortest = result["lemma"][0], result["lemma"][-1]
        ratios = [row["misalignment"][1] for row in (longest, shortest)]
        agree = result["peak"]["agree"]
        return (
            f"{_listed(result['numbers'])} (1: the gradients agree); 1 - PertAlign is {ratios[0]:.2f} times "
            f"what the Hessian predicts for a step of eps, {ratios[1]:.2f} times for eps/{2**HALVINGS}; the "
            f"paper's bound on it holds for {longest['bound']['holds']:.0%} of images at eps; SORA's step "
            f"alpha* is within a factor {agree['factor']:g} of the first peak of the loss for "
            f"{agree['first_peak']:.0%} of images (n = {result['n']})"
        )


def _listed(numbers: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in numbers.items())


def _lengths(result: Result, what: str, low: float) -> Axis:
    label = f"{what} in multiples of eps = {eps_text(result['threat']['eps'])}"
    return Axis(label, low, LONGEST, scale="log")


def _steps(result: Result) -> list[float]:
    return [row["step"] / result["threat"]["eps"] for row in result["lemma"]]


def _ratios(name: str, result: Result, y: Axis) -> Panel:
    items: list[Item] = []
    for key, (label, colour) in RATIOS.items():
        low, middle, high = zip(*(row[key] for row in result["lemma"]), strict=True)
        band: Any = {"low": low, "high": high}
        items.append(Line(_steps(result), middle, f"{label}: median", colour, marker="circle", **band))
    items.append(Rule(1, "y", "1: second order explains all", style="solid"))
    title = f"{name} ({result['n']} images)\n{_listed(result['numbers'])}"
    return Panel(items, title, _lengths(result, "step", SHORTEST), y)


def _bound(result: Result) -> Panel:
    bounds = {"holds": ("below a²/2 (||H||² - k²)", RED), "holds_loose": ("below a²/2 ||H||²", BLUE)}
    items = [
        Line(_steps(result), [row["bound"][key] for row in result["lemma"]], label, colour, marker="circle")
        for key, (label, colour) in bounds.items()
    ]
    y = Axis("images whose 1 - PertAlign is below the bound", -0.04, 1.04, percent=True)
    title = "upper bound on the misalignment,\nsteps along the gradient"
    return Panel(items, title, _lengths(result, "step", SHORTEST), y)


def _mean_loss(result: Result, y: Axis) -> Panel:
    eps, mean = result["threat"]["eps"], result["peak"]["mean_loss"]
    lengths = mean["lengths"]
    x = [a / eps for a in lengths]
    parabola = [mean["at_x"] + a * mean["slope"] + a * a / 2 * mean["curvature"] for a in lengths]
    label = f"parabola through both gradients of a step of {theory.ALPHA0}"
    items: list[Item] = [
        Line(x, mean["loss"], "measured", BLUE),
        Line(x, parabola, label, RED, "dashed"),
        Rule(mean["at_x"], "y", "loss at x", style="solid"),
        Rule(mean["alpha_star"] / eps, name="alpha*: predicted peak", colour=RED, style="solid"),
        Rule(mean["first_peak"] / eps, name="first measured peak", colour=BLUE),
    ]
    return Panel(items, "mean loss along the attack", _lengths(result, "step", SHORT), y)


def _peaks(result: Result) -> Panel:
    eps, peak = result["threat"]["eps"], result["peak"]
    images = {key: [value / eps for value in row] for key, row in peak["images"].items()}
    alpha, ends, text = images["alpha_star"], [SHORT, LONGEST], "of the measured loss"
    items: list[Item] = [
        Points(alpha, images["highest_point"], f"highest point {text}", BLUE, "square", hollow=True),
        Points(alpha, images["first_peak"], f"first peak {text}", RED, size=4.5),
        Line(ends, ends, "as predicted", GREY, width=0.8),
    ]
    first, highest = (f"{100 * peak['agree'][key]:.0f} %" for key in ("first_peak", "highest_point"))
    title = f"alpha* and the peak of each image's loss; within a factor\n{theory.AGREE:g}: "
    title += f"first peak {first}, highest point {highest}"
    y = Axis("measured, in multiples of eps", SHORT, LONGEST, scale="log")
    return Panel(items, title, _lengths(result, "alpha*", SHORT), y)


def _ratio_axis(results: Iterable[Result]) -> Axis:
    rows = [row for result in results for row in result["lemma"]]
    ends = [value for row in rows for key in RATIOS for value in row[key] if math.isfinite(value)]
    low, high = min([-2.0, *(1.5 * end for end in ends)]), 2 * max([2.0, *ends])
    return Axis("measured / predicted from the Hessian (band: middle half)", low, high, scale="symlog")


def _loss_axis(results: Iterable[Result]) -> Axis:
    means = [result["peak"]["mean_loss"] for result in results]
    losses = [value for mean in means for value in (mean["at_x"], *mean["loss"])]
    positive = [value for value in losses if math.isfinite(value) and value > 0] or [1.0]
    return Axis("mean loss", min(positive) / 1.2, max(positive) * 1.2, scale="log")


def _with_nan(value: Any) -> Any:
    """Return a result with NaN wherever a stored one has None."""
    if isinstance(value, Mapping):
        return {key: _with_nan(own) for key, own in value.items()}
    if isinstance(value, list):
        return [_with_nan(own) for own in value]
    return math.nan if value is None else value
