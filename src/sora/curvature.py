"""What two input gradients say about the loss between them: the paper's theory as pure functions.

`g` is the input gradient at the point where an attack starts, `g_adv` the one at the adversarial input.
The second is free: the weight update's backward pass goes through the input anyway. Everything is computed
per example over the flattened input and averaged over the batch; no function synchronises with the host.

All functions treat edge cases the same way: an example whose `g` is all zero is left out; if no example
remains, or if a gradient is not finite, the result is NaN. Vectors are divided by their largest entry before
they are squared, because the gradients of a mean loss underflow.
"""

import torch
from torch import Tensor

from sora.errors import UserError


def _check_pair(g: object, g_adv: object) -> None:
    """Raise if these are not two batches of gradients; shapes are known without waiting for the device."""
    for gradient in (g, g_adv):
        if not isinstance(gradient, Tensor) or gradient.dim() < 2:
            raise UserError(f"a gradient is {describe(gradient)}; expected a tensor (B, ...)")
    if g.shape != g_adv.shape:  # type: ignore[attr-defined]
        raise UserError(f"gradients are {describe(g)} and {describe(g_adv)}; expected one shape")


def describe(value: object) -> str:
    """A value's type, and a tensor's shape, for a message."""
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _scaled(z: Tensor) -> tuple[Tensor, Tensor]:
    """Each example as a float row with largest entry 1, and that largest entry (B, 1), a constant."""
    rows = z.flatten(1)
    rows = rows if rows.dtype == torch.float64 else rows.float()  # sums and squares are safe from here on
    largest = rows.detach().abs().amax(1, keepdim=True)
    return rows / torch.where(largest > 0, largest, 1.0), largest


def _mean_over(values: Tensor, keep: Tensor) -> Tensor:
    """Mean of the values to keep, NaN if there are none."""
    return torch.where(keep, values, 0.0).sum() / keep.sum()


def cosine(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine of each pair of examples (B,) and which of them are defined (B,), both vectors non-zero.

    It is differentiable also where it is undefined: the gradient there is zero.
    """
    _check_pair(a, b)
    (a, a_max), (b, b_max) = _scaled(a), _scaled(b)
    defined = ((a_max != 0) & (b_max != 0)).squeeze(1)
    # The root is taken last and of 1 where undefined: its slope at 0 is infinite.
    squares = torch.where(defined, a.square().sum(1) * b.square().sum(1), 1.0)
    return (a * b).sum(1) / squares.sqrt(), defined


def pert_align(g: Tensor, g_adv: Tensor) -> Tensor:
    """PertAlign, section 4 of the paper: the mean cosine of the two gradients. Near 0 after collapse."""
    return _mean_over(*cosine(g, g_adv))


def alt_pert_align(g: Tensor, g_adv: Tensor) -> Tensor:
    """AltPertAlign, appendix A.5: `||g||_2 (sign(g) . g') / (||g||_1 ||g'||_2)`, averaged."""
    _check_pair(g, g_adv)
    (g, g_max), (g_adv, adv_max) = _scaled(g), _scaled(g_adv)
    defined = ((g_max != 0) & (adv_max != 0)).squeeze(1)
    top = g.square().sum(1).sqrt() * (g.sign() * g_adv).sum(1)
    bottom = g.abs().sum(1) * g_adv.square().sum(1).sqrt()
    return _mean_over(top / torch.where(defined, bottom, 1.0), defined)


def linearity_terms(g: Tensor, g_adv: Tensor, norm: str = "linf", *, ratio_of_sums: bool = False) -> Tensor:
    """Numerator and denominator of the linearity coefficient, shape (2,); they add up over ranks.

    One example's ratio is `sign(g) . g' / ||g||_1` (linf, Algorithm 1) or `g . g' / ||g||_2^2` (l2,
    Algorithm 2). The terms are the sum of these ratios and their number, or with `ratio_of_sums` the sums
    of the numerators and of the denominators.
    """
    _check_pair(g, g_adv)
    if norm not in ("linf", "l2"):
        raise UserError(f"norm is {norm!r}; allowed: linf, l2")
    rows, largest = _scaled(g)
    scale = torch.where(largest > 0, largest, 1.0)
    # Both gradients in units of max|g|: the ratio is unchanged, and the squares no longer underflow.
    adv = g_adv.flatten(1).to(rows.dtype) / scale
    along = rows if norm == "l2" else rows.sign()
    top, bottom = (along * adv).sum(1), (along * rows).sum(1)
    defined = largest.squeeze(1) != 0
    if ratio_of_sums:
        unit = (scale.square() if norm == "l2" else scale).squeeze(1)
        return torch.stack(((top * unit).sum(), (bottom * unit).sum()))
    ratios = torch.where(defined, top / torch.where(defined, bottom, 1.0), 0.0)
    return torch.stack((ratios.sum(), defined.sum().to(ratios.dtype)))


def linearity(g: Tensor, g_adv: Tensor, norm: str = "linf", *, ratio_of_sums: bool = False) -> Tensor:
    """How linear the loss is along the attack: 1 if linear, below 1 if it curves down, NaN if undefined.

    The mean of the per-example ratios; with `ratio_of_sums`, the ratio of the batch sums instead.
    """
    terms = linearity_terms(g, g_adv, norm, ratio_of_sums=ratio_of_sums)
    value = terms[0] / terms[1]
    return torch.where(value.isfinite(), value, torch.nan)


def optimal_step(v: Tensor, alpha0: float, alpha_max: float) -> Tensor:
    """`min(alpha_max, alpha0 / (1 - v))` (Algorithm 1), `alpha_max` where `v >= 1`, NaN where `v` is NaN."""
    for name, value in (("v", v), ("alpha0", alpha0), ("alpha_max", alpha_max)):
        if not isinstance(value, (int, float, Tensor)) or isinstance(value, bool):
            raise UserError(f"{name} is {type(value).__name__}; expected a number or a tensor")
    gap = 1.0 - torch.as_tensor(v)
    step = alpha0 / torch.where(gap <= 0, 1.0, gap)
    return torch.where(gap <= 0, torch.inf, step).clamp(max=alpha_max)
