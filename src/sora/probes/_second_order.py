"""The paper's statements about one attack step, measured beside what Hessian or gradients predict.

All numbers are per example and in float64: they are differences of nearly equal gradients. A step goes along
a straight line, without the clamp to the box, because the paper's statements are about straight lines.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sora._passes import cross_entropy
from sora.curvature import optimal_step
from sora.threat import Threat, flat_norm, unit

REACH = 2.0  # the longest step in multiples of eps: SORA's default alpha_max
ALPHA0 = 0.02  # the step after which g' is taken for alpha*: SORA's default numerator
POWER_STEPS = 20  # at most; power iteration ends when no norm grows by more than CONVERGED
CONVERGED = 1e-3
AGREE = 1.25  # alpha* counts as the measured peak if neither is larger by more than this factor
ROUNDING = 1e-26  # above the rounding error of 1 - cosine for equal float64 gradients


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
        leaf = (self.x + step).detach().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(cross_entropy(self.model(leaf), self.y, "sum"), leaf)[0]


def second_order(model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int) -> SecondOrder:
    """Measure each example's loss up to second order; power iteration starts from the seed."""
    leaf = x.detach().requires_grad_()
    with torch.enable_grad():
        losses = cross_entropy(model(leaf), y, "none")
        (graph,) = torch.autograd.grad(losses.sum(), leaf, create_graph=True)

        def times_hessian(v: Tensor) -> Tensor:
            return torch.autograd.grad(dot(graph, v).sum(), leaf, retain_graph=True)[0]

        g = graph.detach()
        p, u = threat.direction(g), unit(g)
        hp, hu = times_hessian(p), times_hessian(u)
        generator = torch.Generator(x.device).manual_seed(seed)
        noise = torch.empty_like(x).normal_(generator=generator)
        image = unit(hu) + unit(noise)  # noise, because the gradient may lack the leading eigenvector
        norm = flat_norm(hu)
        for count in range(POWER_STEPS):
            image = times_hessian(unit(image))
            before, norm = norm, torch.maximum(norm, flat_norm(image))
            if count >= 3 and (norm <= before * (1 + CONVERGED)).all():
                break
    return SecondOrder(model, x, y, threat.eps, losses.detach(), g, p, hp, u, hu, norm.flatten())


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
