"""The paper's statements about one attack step, measured beside what Hessian or gradients predict.

All numbers are per example and in float64: they are differences of nearly equal gradients. A step goes along
a straight line, without the clamp to the box, because the paper's statements are about straight lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
ROUNDING = 1e-26  # what is left of 1 - cosine of equal float64 gradients, with room


def dot(a: Tensor, b: Tensor) -> Tensor:
    """The inner product of each pair of examples, shape (B,)."""
    return (a * b).flatten(1).sum(1)


def quartiles(values: Tensor) -> list[float]:
    """Lower quartile, median and upper quartile of the finite values, NaN if there are none."""
    finite = values[values.isfinite()]
    if not len(finite):
        return [float("nan")] * 3
    quarters = torch.tensor([0.25, 0.5, 0.75], dtype=finite.dtype, device=finite.device)
    return finite.quantile(quarters).tolist()


def share(holds: Tensor) -> float:
    """How many of the examples, in [0, 1]; NaN if there are none."""
    return holds.double().mean().item()


@dataclass(frozen=True)
class SecondOrder:
    """The loss of each image up to second order, and the network to compare it with.

    Attributes:
        model: The network in float64, frozen.
        x: The images.
        y: Their labels.
        eps: Radius of the threat.
        loss: Each example's loss, shape (B,).
        g: Its gradient.
        p: The direction of the attack: `sign(g)` in linf, the unit gradient in l2.
        hp: Hessian times `p`.
        u: The unit gradient.
        hu: Hessian times `u`.
        norm: Spectral norm of the Hessian, shape (B,); power iteration approaches it from below.
    """

    model: nn.Module
    x: Tensor
    y: Tensor
    eps: float
    loss: Tensor
    g: Tensor
    p: Tensor
    hp: Tensor
    u: Tensor
    hu: Tensor
    norm: Tensor

    def gradient_after(self, step: Tensor) -> Tensor:
        """The gradient of each example's own loss at `x + step`."""
        leaf = (self.x + step).detach().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(cross_entropy(self.model(leaf), self.y, "sum"), leaf)[0]


def second_order(model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int) -> SecondOrder:
    """Gradient and Hessian-vector products of each example's loss; power iteration starts from the seed."""
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
    """`1 - PertAlign` of each example as half the squared distance of unit vectors, which cancels nothing."""
    gap = dot(unit(g) - unit(g_adv), unit(g) - unit(g_adv)) / 2
    return torch.where((flat_norm(g) * flat_norm(g_adv)).flatten() > 0, gap, torch.nan)


def check_step(local: SecondOrder, peaks: Tensor, length: float) -> dict[str, Any]:
    """The lemmas after one step of this length, and how often alpha* of its gradients is the peak."""
    g, p, hp = local.g, local.p, local.hp
    g_adv = local.gradient_after(length * p)
    misaligned = misalignment(g, g_adv)
    k = dot(g, hp) / dot(g, g)
    across = hp - k.view(-1, *[1] * (g.dim() - 1)) * g
    predicted = length**2 / 2 * (flat_norm(across) / flat_norm(g)).flatten().square()
    bend = 1 - dot(p, g_adv) / dot(p, g)
    alt = quartiles(_alt_misalignment(g, g_adv) / (length * _alt_slope(g, hp)))
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


def _alt_misalignment(g: Tensor, g_adv: Tensor) -> Tensor:
    """`1 - AltPertAlign` of each example; beta has `||p||`, not sqrt(d): some pixels may have no gradient."""
    beta = (flat_norm(g) / flat_norm(g_adv)).flatten() / g.flatten(1).abs().sum(1)
    return 1 - beta * dot(g.sign(), g_adv)


def _alt_slope(g: Tensor, hp: Tensor) -> Tensor:
    """`(1 - AltPertAlign) / a` for short steps, as the lemma's proof has it; the lemma is printed negated.

    `AltPertAlign = (1 + a s.Hp / ||g||_1) / (1 + a g.Hp / ||g||^2)` up to a^2, with s = sign(g), which is p
    in linf.
    """
    return dot(g, hp) / dot(g, g) - dot(g.sign(), hp) / g.flatten(1).abs().sum(1)


def check_bound(local: SecondOrder, length: float) -> dict[str, float | list[float]]:
    """`1 - PertAlign <= (a^2/2) (||H||^2 - k^2) <= (a^2/2) ||H||^2` for a step `a g` along the gradient.

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
    """Where each example's loss should peak, from the gradients before and after a step of `length`."""
    before = dot(local.p, local.g)
    steps = optimal_step(dot(local.p, g_adv) / before, length, REACH * local.eps)
    return torch.where(before > 0, steps, torch.nan)


def _agrees(steps: Tensor, peaks: Tensor) -> Tensor:
    factors = steps / peaks  # NaN without a gradient, which agrees with nothing
    return (factors <= AGREE) & (factors >= 1 / AGREE)


def _agreement(steps: Tensor, peaks: Tensor) -> float:
    return share(_agrees(steps, peaks)[steps.isfinite()])


def loss_curve(local: SecondOrder) -> tuple[Tensor, Tensor]:
    """Step lengths from eps/64 to `REACH * eps`, four per doubling, and the losses (lengths, B)."""
    exponents = torch.arange(-28, 1, dtype=local.g.dtype, device=local.g.device) / 4
    lengths = REACH * local.eps * 2**exponents
    with torch.no_grad():
        points = (local.model(local.x + length * local.p) for length in lengths)
        return lengths, torch.stack([cross_entropy(logits, local.y, "none") for logits in points])


def first_peaks(lengths: Tensor, curve: Tensor) -> Tensor:
    """The first length after which the loss falls, the last one if it never does; one per column."""
    falls = curve[1:] < curve[:-1]
    return lengths[torch.where(falls.any(0), falls.double().argmax(0), len(lengths) - 1)]


def check_peak(local: SecondOrder, lengths: Tensor, curve: Tensor) -> dict[str, Any]:
    """Alpha* from the gradients before and after a step of `ALPHA0`, beside where the measured loss peaks.

    For the mean loss, a quadratic peaks at alpha* of the coefficient that is a ratio of sums; Algorithm 1
    uses the mean of the examples' ratios.
    """
    g_adv = local.gradient_after(ALPHA0 * local.p)
    longest = REACH * local.eps
    steps = alpha_star(local, g_adv, ALPHA0)
    first, highest = first_peaks(lengths, curve), lengths[curve.argmax(0)]
    before, after = dot(local.p, local.g), dot(local.p, g_adv)
    mean = curve.mean(1, keepdim=True)
    inside = first < lengths[-1]
    return {
        "g_adv_after": ALPHA0,
        "longest": longest,
        "agree": {
            "factor": AGREE,
            "first_peak": _agreement(steps, first),
            "highest_point": _agreement(steps, highest),
        },
        "images_with_peak_inside": int(inside.sum()),
        "images_with_peak_inside_that_agree": int((_agrees(steps, first) & inside).sum()),
        "images_curved_down_at_x": int((dot(local.p, local.hp) < 0).sum()),
        "images": {
            "alpha_star": steps.tolist(),
            "first_peak": first.tolist(),
            "highest_point": highest.tolist(),
        },
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
