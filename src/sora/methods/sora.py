"""SORA: one step, its size set by the curvature measured from the two gradients of recent batches."""

from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn

from sora import curvature
from sora._devices import summed
from sora.errors import UserError
from sora.methods import Crafted, Hyper, Inputs, Learned, Method, option, register
from sora.threat import L2, Threat


@dataclass(frozen=True)
class SORAHyper(Hyper):
    """SORA's hyper-parameters; the switches at the end are the paper's ablations."""

    alpha0: float = option(
        0.02, "step at a coefficient of 0, in input units (not in multiples of eps)", above=0
    )
    beta: float = option(0.05, "weight of a batch in the moving coefficient v", low=0, high=1)
    alpha_max: float = option(2.0, "largest step in multiples of eps", low=0)
    v0: float = option(0.99, "the moving coefficient before the first batch")
    k: float = option(1.0, "noise radius in multiples of eps", low=0)
    sample: bool = option(
        True, "draw a step for each element from [0, alpha*]; otherwise use alpha* everywhere"
    )
    adaptive: bool = option(True, "follow the curvature; otherwise alpha* stays alpha_max")
    clip_ball: bool = option(False, "project the perturbation onto the ball")
    box_noise: bool = option(False, "clamp the noisy start to the box before taking its gradient")
    update_first: bool = option(False, "update v before alpha*, instead of after it as in Algorithm 1")
    ratio_of_sums: bool = option(
        False, "compute the batch coefficient as a ratio of sums, not a mean of ratios"
    )
    coef_clamp: tuple[float, ...] | None = option((-1.0, 1.0), "range of a batch's coefficient, or none")
    direction: Literal["unit", "raw"] = option("unit", "l2 only: step along the unit gradient or the raw one")

    def __post_init__(self) -> None:
        super().__post_init__()
        limits = self.coef_clamp
        if limits is not None and (len(limits) != 2 or limits[0] > limits[1]):
            raise UserError(f"{self.prefix}coef_clamp is {limits}; expected two limits, or none")


@register(
    "sora",
    "one step, its size set by the curvature of the last batches",
    group="one step",
    paper="Teymourian et al., SORA: Free Second-Order Attacks in Fast Adversarial Training",
    venue="ICML 2026",
    forwards="2",
    backwards="1 in + 1 (to the input)",
    paper_cost="2 / 2",
    cost=2,
    norms=("linf", "l2"),
    uses_input_gradient=True,
    compilable=True,
)
class SORA(Method):
    """Algorithm 1 (linf) and Algorithm 2 (l2) of the paper.

    In linf, with noise eta, `g = grad L(x + eta)` and a step `a ~ U(0, alpha*)` for each element:
    `x_adv = box(x + eta + a sign(g))`. From `g' = grad L(x_adv)`, which the weight update yields anyway,
    `c = mean_i sign(g_i) . g'_i / ||g_i||_1`; then `alpha* = min(alpha_max, alpha0 / (1 - v))` and
    `v = (1 - beta) v + beta c`. In l2 the noise is on the sphere, the step goes along `g / ||g||_2`, and
    `c = mean_i g_i . g'_i / ||g_i||_2^2`.

    Buffers: the moving linearity coefficient `v`, the step size `alpha_star` of the next batch, and counts
    of the batches seen, skipped (all gradients zero, or not finite) and clamped.
    """

    hyper: SORAHyper
    v: Tensor
    alpha_star: Tensor
    counts: Tensor

    def __init__(self, threat: Threat, hyper: SORAHyper) -> None:
        super().__init__(threat, hyper)
        v = torch.tensor(hyper.v0)
        self.register_buffer("v", v)
        self.register_buffer("alpha_star", self._step_size(v))
        self.register_buffer("counts", torch.zeros(3, dtype=torch.int64))

    def _step_size(self, v: Tensor) -> Tensor:
        largest = self.hyper.alpha_max * self.threat.eps
        if not self.hyper.adaptive:
            return torch.full_like(v, largest)
        return curvature.optimal_step(v, self.hyper.alpha0, largest)

    def draw(self, x: Tensor) -> tuple[Tensor, ...]:
        """Draw noise (on the sphere in l2) and, if steps are sampled, a uniform number for each element."""
        threat = self.threat
        eta = threat.sphere(x) if isinstance(threat, L2) else threat.random_start(x)
        if self.hyper.k != 1:
            eta = eta.mul_(self.hyper.k)
        return (eta, torch.rand_like(x)) if self.hyper.sample else (eta,)

    def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
        """Attack as Algorithm 1 does: `x_adv = box(x + eta + a * direction(g))`."""
        x, threat, hyper = batch.x, self.threat, self.hyper
        start = x + batch.noise[0]
        start = threat.clamp(start) if hyper.box_noise else start
        g, logits = self.attack_gradient(model, start, batch.y, batch.loss_scale)
        # Under eps warm-up the stored step may belong to another radius.
        step_size = self.alpha_star.clamp(max=hyper.alpha_max * threat.eps)
        raw = hyper.direction == "raw" and threat.norm == "l2"
        along = g * len(x) if raw else g  # raw: the gradient of each example's own loss
        length = batch.noise[1] * step_size if hyper.sample else step_size
        if hyper.clip_ball:
            x_adv = threat.projected_step(x, start - x, along, length, normalise=not raw)
        else:
            x_adv = threat.step(start, along, length, normalise=not raw)
        return Crafted(x_adv, g, logits=logits, step_size=step_size)

    def update_state(self, batch: Inputs, crafted: Crafted, learned: Learned) -> dict[str, Tensor]:
        """Turn the two gradients into the batch's coefficient and update alpha* and v, in that order."""
        g, g_adv = cast(Tensor, crafted.gradient), cast(Tensor, learned.gradient)
        hyper = self.hyper
        terms = curvature.linearity_terms(g, g_adv, self.threat.norm, ratio_of_sums=hyper.ratio_of_sums)
        terms = summed(terms)  # one coefficient, and so one step size, for all ranks
        raw = terms[0] / terms[1]
        c = raw if hyper.coef_clamp is None else raw.clamp(*hyper.coef_clamp)
        usable = raw.isfinite()
        v = torch.where(usable, (1 - hyper.beta) * self.v + hyper.beta * c, self.v).to(self.v.dtype)
        alpha_star = self._step_size(v if hyper.update_first else self.v)
        self.alpha_star.copy_(torch.where(usable, alpha_star, self.alpha_star))
        self.v.copy_(v)
        self.counts += torch.stack((torch.ones_like(usable), ~usable, usable & (c != raw)))
        seen = self.counts[0]
        return {"v": self.v.clone(), "skipped": self.counts[1] / seen, "clamped": self.counts[2] / seen}
