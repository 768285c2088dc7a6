"""The curvature metrics of a batch, and the paper's theory checked on trained weights and their images.

Each statement about one attack step is measured beside what Hessian or gradients predict, per example and in
float64: the numbers are differences of nearly equal gradients. A step goes along a straight line, without the
clamp to the box, because the paper's statements are about straight lines.
"""

import copy
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sora import metrics
from sora._devices import device_for_float64
from sora._passes import cross_entropy, frozen, gradient_of
from sora._seeds import generator_for, normal
from sora.curvature import optimal_step
from sora.errors import UserError
from sora.evaluation.progress import progress_bar
from sora.figures import BLUE, GREEN, GREY, RED, Axis, Figure, Item, Line, Panel, Points, Rule
from sora.probes._base import Probe, ProbedModel, Result, register
from sora.threat import Threat, eps_text, flat_norm, unit

METRICS = ("pertalign", "gradalign", "linearity", "altpertalign")
HALVINGS = 12  # steps from eps down to eps / 4096
REACH = 2.0  # the longest step in multiples of eps: SORA's default alpha_max
ALPHA0 = 0.02  # the step after which g' is taken for alpha*: SORA's default numerator
POWER_STEPS = 20  # at most; power iteration ends when no norm grows by more than CONVERGED
CONVERGED = 1e-3
AGREE = 1.25  # alpha* counts as the measured peak if neither is larger by more than this factor
ROUNDING = 1e-26  # above the rounding error of 1 - cosine for equal float64 gradients
LONGEST = 2 * REACH  # where the axes of lengths end, in multiples of eps
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
            local = second_order(model, x, y, threat, subject.seed)
            lengths, curve = loss_curve(local)
            peak = check_peak(local, lengths, curve)
            advance()
            first = first_peaks(lengths, curve)
            for k in range(HALVINGS + 1):
                length = threat.eps / 2**k
                lemma.append({"step": length} | check_step(local, first, length))
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


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Return the inner product of each pair of examples, shape (B,)."""
    return (a * b).flatten(1).sum(1)


def quartiles(values: Tensor) -> list[float]:
    """Return lower quartile, median and upper quartile of the finite values, NaN if there are none."""
    finite = values[values.isfinite()]
    if not len(finite):
        return [float("nan")] * 3
    quarters = torch.tensor([0.25, 0.5, 0.75], dtype=finite.dtype, device=finite.device)
    return finite.quantile(quarters).tolist()


def share(holds: Tensor) -> float:
    """Return the share of true values, in [0, 1]; NaN if there are no values."""
    return holds.double().mean().item()


class SecondOrder(NamedTuple):
    """The loss of each image up to second order, and the model to compare it with."""

    model: nn.Module  # frozen, in float64
    x: Tensor
    y: Tensor
    eps: float
    loss: Tensor  # of each example, shape (B,)
    g: Tensor  # gradient of each example's loss
    p: Tensor  # direction of the attack: `sign(g)` in linf, the unit gradient in l2
    hp: Tensor  # Hessian times `p`
    u: Tensor  # unit gradient
    hu: Tensor  # Hessian times `u`
    norm: Tensor  # spectral norm of the Hessian, shape (B,); power iteration approaches it from below

    def gradient_after(self, step: Tensor) -> Tensor:
        """Return the gradient of each example's own loss at `x + step`."""
        return gradient_of(lambda z: cross_entropy(z, self.y, "sum"), self.model, self.x + step)[0]


def second_order(model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int) -> SecondOrder:
    """Measure each example's loss up to second order; power iteration starts from the seed."""
    leaf = x.detach().requires_grad_()
    graph, logits = gradient_of(lambda z: cross_entropy(z, y, "sum"), model, leaf, create_graph=True)
    with torch.enable_grad():

        def times_hessian(v: Tensor) -> Tensor:
            return torch.autograd.grad(dot(graph, v).sum(), leaf, retain_graph=True)[0]

        g = graph.detach()
        p, u = threat.direction(g), unit(g)
        hp, hu = times_hessian(p), times_hessian(u)
        generator = generator_for(x.device, seed)
        noise = normal(x, generator)
        image = unit(hu) + unit(noise)  # noise, because the gradient may lack the leading eigenvector
        norm = flat_norm(hu)
        for count in range(POWER_STEPS):
            image = times_hessian(unit(image))
            before, norm = norm, torch.maximum(norm, flat_norm(image))
            if count >= 3 and (norm <= before * (1 + CONVERGED)).all():
                break
    losses = cross_entropy(logits, y, "none")
    return SecondOrder(model, x, y, threat.eps, losses, g, p, hp, u, hu, norm.flatten())


def misalignment(g: Tensor, g_adv: Tensor) -> Tensor:
    """Return each example's `1 - PertAlign`, as half the squared distance of unit vectors."""
    gap = unit(g) - unit(g_adv)
    return torch.where((flat_norm(g) * flat_norm(g_adv)).flatten() > 0, dot(gap, gap) / 2, torch.nan)


def check_step(local: SecondOrder, peaks: Tensor, length: float) -> dict[str, Any]:
    """Check the lemmas after one step of this length, and how often alpha* of its gradients is the peak."""
    g, p, hp = local.g, local.p, local.hp
    g_adv = local.gradient_after(length * p)
    misaligned = misalignment(g, g_adv)
    k = dot(g, hp) / dot(g, g)
    across = hp - k.view(-1, *[1] * (g.dim() - 1)) * g
    predicted = length**2 / 2 * (flat_norm(across) / flat_norm(g)).flatten().square()
    bend = 1 - dot(p, g_adv) / dot(p, g)
    alt = quartiles(_alt_ratio(local, g_adv, length))
    steps = alpha_star(local, g_adv, length)
    return {
        "pert_align": (1 - misaligned).nanmean().item(),
        "misalignment": quartiles(misaligned / predicted),
        "bend": quartiles(bend / (-length * dot(p, hp) / dot(p, g))),
        "altpertalign": alt,
        "altpertalign_printed_sign": [-value for value in reversed(alt)],
        "bound": check_bound(local, length),
        "alpha_star": quartiles(steps / local.eps),
        "agrees_with_first_peak": _agreement(steps, peaks),
    }


def _alt_ratio(local: SecondOrder, g_adv: Tensor, length: float) -> Tensor:
    """Return `1 - AltPertAlign` of each example over `length` times its slope at 0 in the lemma's proof.

    `AltPertAlign = (1 + a s.Hp / ||g||_1) / (1 + a g.Hp / ||g||^2)` up to a^2, with s = sign(g), which is p
    in linf; the lemma is printed negated. Beta has `||p||`, not sqrt(d): some pixels may have no gradient.
    """
    g, hp = local.g, local.hp
    l1 = g.flatten(1).abs().sum(1)
    beta = (flat_norm(g) / flat_norm(g_adv)).flatten() / l1
    slope = dot(g, hp) / dot(g, g) - dot(g.sign(), hp) / l1
    return (1 - beta * dot(g.sign(), g_adv)) / (length * slope)


def check_bound(local: SecondOrder, length: float) -> dict[str, float | list[float]]:
    """Check `1 - PertAlign <= (a^2/2) (||H||^2 - k^2) <= (a^2/2) ||H||^2` for a step `a g`.

    The step is as long, in l2, as one of `length` along the attack. `holds` and `holds_loose` are the shares
    of examples for the two bounds, `used` the measured part of the first.
    """
    g, u, hu = local.g, local.u, local.hu
    reached = length * flat_norm(local.p)
    misaligned = misalignment(g, local.gradient_after(reached * u))
    k = dot(u, hu)
    across = hu - k.view(-1, *[1] * (g.dim() - 1)) * u
    # ||H||^2 - k^2 without cancellation: the gradient is often close to the leading eigenvector.
    above = (local.norm.square() - dot(hu, hu)).clamp(min=0) + dot(across, across)
    half = (reached / flat_norm(g)).flatten().square() / 2
    defined = misaligned.isfinite() & half.isfinite()
    measured, bound, loose = (z[defined] for z in (misaligned, half * above, half * local.norm.square()))
    return {
        "holds": share(measured <= bound * (1 + 1e-9) + ROUNDING),
        "holds_loose": share(measured <= loose * (1 + 1e-9) + ROUNDING),
        "used": quartiles(measured / bound),
    }


def alpha_star(local: SecondOrder, g_adv: Tensor, length: float) -> Tensor:
    """Return where each example's loss should peak, by its gradients before and after a step of `length`."""
    before = dot(local.p, local.g)
    steps = optimal_step(dot(local.p, g_adv) / before, length, REACH * local.eps)
    return torch.where(before > 0, steps, torch.nan)


def _agrees(steps: Tensor, peaks: Tensor) -> Tensor:
    factors = steps / peaks  # NaN without a gradient, which agrees with nothing
    return (factors <= AGREE) & (factors >= 1 / AGREE)


def _agreement(steps: Tensor, peaks: Tensor) -> float:
    return share(_agrees(steps, peaks)[steps.isfinite()])


def loss_curve(local: SecondOrder) -> tuple[Tensor, Tensor]:
    """Return step lengths from eps/64 to `REACH * eps`, four per doubling, and the losses (lengths, B)."""
    exponents = torch.arange(-28, 1, dtype=local.g.dtype, device=local.g.device) / 4
    lengths = REACH * local.eps * 2**exponents
    with torch.no_grad():
        points = (local.model(local.x + length * local.p) for length in lengths)
        return lengths, torch.stack([cross_entropy(logits, local.y, "none") for logits in points])


def first_peaks(lengths: Tensor, curve: Tensor) -> Tensor:
    """Return for each column the first length after which the loss falls, the last one if it never does."""
    falls = curve[1:] < curve[:-1]
    return lengths[torch.where(falls.any(0), falls.double().argmax(0), len(lengths) - 1)]


def check_peak(local: SecondOrder, lengths: Tensor, curve: Tensor) -> dict[str, Any]:
    """Compare alpha*, from the gradients before and after a step of `ALPHA0`, with the measured peaks.

    For the mean loss, a quadratic peaks at alpha* of the coefficient that is a ratio of sums; Algorithm 1
    uses the mean of the examples' ratios.
    """
    g_adv = local.gradient_after(ALPHA0 * local.p)
    longest = REACH * local.eps
    steps = alpha_star(local, g_adv, ALPHA0)
    peaks = {"first_peak": first_peaks(lengths, curve), "highest_point": lengths[curve.argmax(0)]}
    before, after = dot(local.p, local.g), dot(local.p, g_adv)
    mean = curve.mean(1, keepdim=True)
    inside = peaks["first_peak"] < lengths[-1]
    return {
        "g_adv_after": ALPHA0,
        "longest": longest,
        "agree": {"factor": AGREE} | {name: _agreement(steps, own) for name, own in peaks.items()},
        "images_with_peak_inside": int(inside.sum()),
        "images_with_peak_inside_that_agree": int((_agrees(steps, peaks["first_peak"]) & inside).sum()),
        "images_curved_down_at_x": int((dot(local.p, local.hp) < 0).sum()),
        "images": {name: own.tolist() for name, own in ({"alpha_star": steps} | peaks).items()},
        "mean_loss": {
            "at_x": local.loss.mean().item(),
            "lengths": lengths.tolist(),
            "loss": mean.flatten().tolist(),
            "slope": before.mean().item(),
            "curvature": ((after - before).mean() / ALPHA0).item(),
            "alpha_star": optimal_step(after.sum() / before.sum(), ALPHA0, longest).item(),
            "alpha_star_algorithm_1": optimal_step((after / before).nanmean(), ALPHA0, longest).item(),
            "first_peak": first_peaks(lengths, mean).item(),
            "highest_point": lengths[mean.argmax()].item(),
        },
    }


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
    label = f"parabola through both gradients of a step of {ALPHA0}"
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
    title = f"alpha* and the peak of each image's loss; within a factor\n{AGREE:g}: "
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
