"""The norm balls an attacker may move in: random start, ascent direction, projection, pixel box.

Every method and every attack gets its geometry here. All functions work on tensors of any shape with a
leading batch dimension and never read a tensor value on the host.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from sora._seeds import normal, uniform
from sora.errors import UserError, short, unknown

Box = tuple[float, float]


def parse_eps(value: float | str) -> float:
    """A radius as a number, from a number or from text like `"8/255"`."""
    try:
        if isinstance(value, str):
            top, slash, bottom = value.partition("/")
            number = float(top) / float(bottom) if slash else float(top)
        else:
            number = math.nan if isinstance(value, (bool, bytes, bytearray)) else float(value)
    except (ValueError, ZeroDivisionError, TypeError, OverflowError, RuntimeError):
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"eps {short(value)} is not a number; write 0.03 or a fraction such as 8/255")
    return number


def parse_box(value: object) -> Box:
    """The lowest and the highest value of a coordinate, from a pair of numbers."""
    try:
        low, high = map(float, () if isinstance(value, str) else value)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise UserError(f"box {short(value)} is not a range; write (low, high) or None")
    return low, high


def eps_text(eps: float) -> str:
    """A radius for display: `8/255` for a small integer number of pixel levels, otherwise four digits."""
    levels = eps * 255
    whole = abs(levels - round(levels)) < 1e-6 and 0 < round(levels) <= 32
    return f"{round(levels)}/255" if whole else f"{eps:.4g}"


def flat_norm(z: Tensor) -> Tensor:
    """The l2 norm of each example, shaped to broadcast against `z`."""
    _, largest, norm = _scaled(z)
    return (norm * largest).to(z.dtype)


def unit(z: Tensor) -> Tensor:
    """Each example divided by its l2 norm; an all-zero example stays zero."""
    scaled, _, norm = _scaled(z)
    return (scaled / torch.where(norm > 0, norm, 1.0)).to(z.dtype)


def _scaled(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each example divided by its largest entry, that entry, and the l2 norm of what is left.

    Gradients of a mean loss are so small that their squares underflow, and sums over an image overflow in
    half precision.
    """
    dims = tuple(range(1, z.dim()))
    z = z if z.dtype == torch.float64 else z.float()
    largest = z.abs().amax(dims, keepdim=True)
    scaled = z / torch.where(largest > 0, largest, 1.0)
    return scaled, largest, scaled.square().sum(dims, keepdim=True).sqrt()


class Threat(ABC):
    """What an attacker may do to an input: move it by at most `eps` in a norm and stay inside the box.

    Args:
        eps: The radius in the units of the input, as a number or as text such as `"8/255"`.
        box: The lowest and highest value an input may have; `None` for data without a pixel range.
    """

    norm: ClassVar[str]

    def __init__(self, eps: float | str, box: Box | None = (0.0, 1.0)) -> None:
        self.eps = parse_eps(eps)
        if self.eps < 0:
            raise UserError(f"eps {eps!r} is negative; a radius is 0 or more")
        self.given = str(eps)
        self.box = None if box is None else parse_box(box)
        if self.box is not None and self.eps > self.largest_eps(self.box[1] - self.box[0]):
            guess = f"; did you mean {eps}/255?" if 1 <= self.eps <= 255 and "/" not in self.given else ""
            raise UserError(f"eps {self.given} is larger than the pixel range {self.box}{guess}")

    @classmethod
    def largest_eps(cls, width: float) -> float:
        """The largest radius that makes sense in a box of this width."""
        return width

    def scaled(self, factor: float) -> Threat:
        """The same norm and box with another radius, which may be larger than the box."""
        other = copy.copy(self)
        other.eps = self.eps * factor
        other.given = str(other.eps)
        return other

    def clamp(self, z: Tensor) -> Tensor:
        """The nearest valid input."""
        return z if self.box is None else z.clamp(*self.box)

    def inside(self, x: Tensor, delta: Tensor) -> Tensor:
        """`x + delta` projected onto the ball around `x`, then clamped to the box."""
        return self.clamp(x + self.project(delta))

    def step(self, at: Tensor, gradient: Tensor, length: float | Tensor, *, normalise: bool = True) -> Tensor:
        """One ascent step from `at`, clamped to the box but not projected onto a ball.

        Args:
            at: Where the step starts.
            gradient: The gradient there.
            length: Length of the step, broadcastable to `at`; a negative one steps against the gradient.
            normalise: Step along `direction(gradient)`; `False` multiplies the gradient itself.
        """
        return self.clamp(at + self._along(gradient, normalise) * length)

    def projected_step(
        self,
        x: Tensor,
        delta: Tensor | float,
        gradient: Tensor,
        length: float | Tensor,
        *,
        normalise: bool = True,
    ) -> Tensor:
        """One ascent step from `x + delta`, projected onto the ball around `x`, then clamped to the box.

        Args:
            x: The centre of the ball.
            delta: The perturbation before the step.
            gradient: The gradient at `x + delta`.
            length: Length of the step, broadcastable to `x`.
            normalise: As in `step`.
        """
        return self.inside(x, self._along(gradient, normalise) * length + delta)

    def _along(self, gradient: Tensor, normalise: bool) -> Tensor:
        return self.direction(gradient) if normalise else gradient

    @abstractmethod
    def random_start(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Noise inside the ball, shaped like `x`."""

    @abstractmethod
    def direction(self, gradient: Tensor) -> Tensor:
        """The direction of steepest ascent, of length one in this norm; zero where the gradient is zero."""

    @abstractmethod
    def project(self, delta: Tensor) -> Tensor:
        """The nearest perturbation inside the ball."""

    @abstractmethod
    def size(self, delta: Tensor) -> Tensor:
        """The norm of each example's perturbation, shape (B,)."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.given}, box={self.box})"

    def __eq__(self, other: object) -> bool:
        mine = self.norm, self.eps, self.box
        return isinstance(other, Threat) and mine == (other.norm, other.eps, other.box)

    def __hash__(self) -> int:
        return hash((self.norm, self.eps, self.box))


class Linf(Threat):
    """Every coordinate may move by at most `eps`."""

    norm = "linf"

    def random_start(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Uniform noise in [-eps, eps], independent for each coordinate."""
        return uniform(x, -self.eps, self.eps, generator)

    def direction(self, gradient: Tensor) -> Tensor:
        """The sign of the gradient, 0 where it is 0 or not a number."""
        return gradient.sign()

    def project(self, delta: Tensor) -> Tensor:
        """Clip each coordinate to [-eps, eps]."""
        return delta.clamp(-self.eps, self.eps)

    def size(self, delta: Tensor) -> Tensor:
        """The largest absolute coordinate of each example."""
        return delta.flatten(1).abs().amax(1)


class L2(Threat):
    """The whole perturbation of an example may have a Euclidean length of at most `eps`."""

    norm = "l2"

    @classmethod
    def largest_eps(cls, width: float) -> float:
        """The diagonal of a box with 10^8 coordinates; how many an input has is not known here."""
        return 1e4 * width

    def sphere(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Noise of length exactly eps in a uniformly random direction."""
        return unit(normal(x, generator)) * self.eps

    def random_start(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Noise of length `eps * r` with r uniform in [0, 1], in a random direction."""
        direction = self.sphere(x, generator)
        return direction * uniform(x.new_empty(x.shape[:1] + (1,) * (x.dim() - 1)), 0, 1, generator)

    def direction(self, gradient: Tensor) -> Tensor:
        """The gradient divided by its length, 0 where it is 0."""
        return unit(gradient)

    def project(self, delta: Tensor) -> Tensor:
        """Shorten every perturbation longer than eps to length eps."""
        norm = flat_norm(delta)
        return delta * torch.where(norm > self.eps, self.eps / norm, 1.0)

    def size(self, delta: Tensor) -> Tensor:
        """The Euclidean length of each example's perturbation."""
        return flat_norm(delta).flatten()


NORMS: dict[str, type[Threat]] = {"linf": Linf, "l2": L2}


def threat(norm: str, eps: float | str, box: Sequence[float] | None = (0.0, 1.0)) -> Threat:
    """The threat model for a norm given by name, as in flags and files."""
    if not isinstance(norm, str) or norm not in NORMS:
        raise unknown("norm", norm, NORMS)
    return NORMS[norm](eps, None if box is None else parse_box(box))
