"""AutoAttack's versions through the package `pyautoattack`, adapted to the number of classes.

The attacks and their parameters are the package's own. This file adapts the number of target classes and
leaves out parts that need more classes than there are, passes the seed explicitly, and restores torch's
global generator, which the package resets.
"""

from __future__ import annotations

import logging
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from sora._checks import checking
from sora._passes import bare, fast_order, frozen
from sora._seeds import mix, seeded
from sora._task import PLAIN
from sora.attacks._base import Attack, register
from sora.errors import UserError
from sora.threat import Threat

PARTS = {
    "apgd-ce": "part of AutoAttack: APGD on the cross-entropy",
    "apgd-dlr": "part of AutoAttack's rand and plus versions: APGD on the DLR loss",
    "apgd-t": "part of AutoAttack: targeted APGD on the DLR loss",
    "fab": "part of AutoAttack's plus version: FAB without targets",
    "fab-t": "part of AutoAttack: targeted FAB",
    "square": "part of AutoAttack: random search with 5000 queries, without gradients; squareQ: Q queries",
}
VERSIONS = {
    "aa": ("apgd-ce", "apgd-t", "fab-t", "square"),
    "aa-plus": ("apgd-cex5", "apgd-dlrx5", "fabx5", "square", "apgd-t", "fab-t"),
    "aa-rand": ("apgd-ce@eot20", "apgd-dlr@eot20"),
}
TARGETED = ("apgd-t", "fab-t")
LEAST_CLASSES = {"apgd-dlr": 3, "apgd-t": 4}  # their losses need that many logits; the others need 2
REDUCED = "-reduced"  # end of the name of a version without the parts that need more classes
_NORMS = {"linf": "Linf", "l2": "L2"}
# The package warns about zero gradients in every call; the evaluation reports them once.
_QUIET = logging.getLogger("sora.autoattack")
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False


class _FromPackage(Attack):
    """What AutoAttack and its parts have in common."""

    slow = True  # thousands of passes per image
    packages = ("pyautoattack",)


@dataclass(frozen=True)
class AutoPart(_FromPackage):
    """One of the attacks that AutoAttack consists of, e.g. `apgd-ce`, `apgd-cex5` or `apgd-ce@eot20`."""

    targets: int | None = None  # number of target classes; None until the number of classes is known
    restarts: int = 1
    eot: int = 1  # passes over which each gradient is averaged
    queries: int | None = None  # of Square, instead of 5000

    def __post_init__(self) -> None:
        for letter, count in (("R", self.restarts), ("N", self.eot)):
            if count < 1:
                raise UserError(f"attack {self.name!r}: {letter} in xR and @eotN must be 1 or more")

    @property
    def kind(self) -> str:
        """Its name in `PARTS`."""
        return re.sub(r"(x?\d+)?(@eot\d+)?$", "", self.name)

    @property
    def steps(self) -> int:
        """Iterations; queries for Square."""
        return self.queries or (5000 if self.kind == "square" else 100)

    @property
    def stream(self) -> int:
        """One for each kind: more restarts begin with the same ones."""
        return zlib.crc32(self.kind.encode())

    @property
    def parts(self) -> tuple[Attack, ...]:
        """Itself, on the correctly classified examples."""
        return (self,)

    @property
    def passes(self) -> int:
        """Forward passes if no example is broken: FAB makes two per iteration."""
        per_step = 2 if self.kind.startswith("fab") else 1
        return (self.targets or 1) * self.restarts * self.eot * self.steps * per_step

    def for_classes(self, num_classes: int) -> AutoPart:
        """Limit the target classes to the other classes."""
        least = LEAST_CLASSES.get(self.kind, 2)
        if num_classes < least:
            raise UserError(f"{self.name} needs {least} classes or more, the model has {num_classes}")
        return replace(self, targets=min(9, num_classes - 1) if self.kind in TARGETED else None)

    def settings(self, threat: Threat) -> dict[str, Any]:
        """Return iterations (queries for Square), restarts and targets; step sizes adapt."""
        own = {"steps": self.steps, "restarts": self.restarts}
        own |= {"targets": self.targets} if self.targets else {}
        own |= {"eot": self.eot} if self.eot > 1 else {}
        return super().settings(threat) | own

    def check(self, x: Tensor, y: Tensor, threat: Threat) -> None:
        """Raise unless these are images in [0, 1], for Square of a size that the package can divide."""
        if threat.box != (0.0, 1.0) or x.dim() != 4:
            raise UserError(
                f"{self.name} works on images (batch, channels, height, width) in [0, 1]; got shape"
                f" {tuple(x.shape)} and box {threat.box}: use pgd50x10 for other data"
            )
        if self.kind == "square":
            _check_size(x.shape[2], x.shape[3], threat.norm)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int = 0) -> Tensor:
        """Return adversarial examples where the attack succeeds, `x` elsewhere."""
        model = bare(model)
        with checking(model, x, y, threat, PLAIN), frozen(model), seeded(seed):
            self.check(x, y, threat)
            if threat.eps == 0:
                return x
            part = self if self.targets else self.for_classes(_classes(model, x))

            def in_float32(z: Tensor) -> Tensor:  # the package computes in no other precision
                return model(fast_order(model, z.to(x.dtype))).float()  # type: ignore[no-any-return]

            # The package views tensors flat, which channels-last inputs do not allow.
            x_adv: Tensor = build(part, in_float32, x.device, threat, seed).perturb(x.float().contiguous(), y)
        return x_adv.detach().to(x.dtype)


@dataclass(frozen=True)
class AutoAttack(_FromPackage):
    """An ensemble: each part attacks the examples that the parts before it did not break."""

    members: tuple[AutoPart, ...] = ()

    def __post_init__(self) -> None:
        if not self.members:
            object.__setattr__(self, "members", tuple(_part(name) for name in VERSIONS[self.version]))

    @property
    def version(self) -> str:
        """Its name in `VERSIONS`."""
        return self.name.removesuffix(REDUCED)

    @property
    def parts(self) -> tuple[Attack, ...]:
        """The version's attacks in AutoAttack's order, or those defined for the number of classes."""
        return self.members

    def for_classes(self, num_classes: int) -> AutoAttack:
        """Leave out the parts that are undefined for few classes; its name then says so."""
        # A version requested as `-reduced` leaves these parts out whatever the number of classes.
        most = 0 if self.name.endswith(REDUCED) else num_classes
        defined = [part for part in self.members if most >= LEAST_CLASSES.get(part.kind, 0)]
        complete = len(defined) == len(VERSIONS[self.version])
        name = self.version if complete else self.version + REDUCED
        return replace(self, name=name, members=tuple(part.for_classes(num_classes) for part in defined))

    def settings(self, threat: Threat) -> dict[str, Any]:
        """Return the parts, and how many target classes they try."""
        targets = {part.name: part.targets for part in self.members if part.targets}
        own = {"steps": None, "parts": [part.name for part in self.members], "targets": targets}
        eot = max(part.eot for part in self.members)
        return super().settings(threat) | own | ({"eot": eot} if eot > 1 else {})

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int = 0) -> Tensor:
        """Return adversarial examples where any part succeeds, `x` elsewhere."""
        model = bare(model)
        with checking(model, x, y, threat, PLAIN), frozen(model), seeded(seed), torch.no_grad():
            self.check(x, y, threat)
            x_adv = x.clone()
            for part in self.for_classes(_classes(model, x)).members:
                left = (model(x_adv).argmax(1) == y).nonzero()[:, 0]
                if len(left) == 0:
                    break
                x_adv[left] = part(model, x[left], y[left], threat, mix(seed, part.stream))
        return x_adv


def autoattack(model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int = 0) -> Tensor:
    """Run AutoAttack's standard version on one batch; `sora.evaluate` runs it on a data set and can resume.

    Args:
        model: From images in [0, 1] to logits; attacked in evaluation mode and left unchanged.
        x: Images, shape (B, C, H, W).
        y: Class labels, shape (B,).
        threat: `Linf` or `L2` with the box (0, 1).
        seed: Seed of all parts; torch's global generator is left unchanged.
    """
    return AutoAttack("aa")(model, x, y, threat, seed)


def is_autoattack(name: str) -> bool:
    """Return whether an attack of this name is a version of AutoAttack, complete or reduced."""
    return name.removesuffix(REDUCED) in VERSIONS


def build(
    part: AutoPart, model: Callable[[Tensor], Tensor], device: torch.device, threat: Threat, seed: int
) -> Any:
    """Return the package's own attack object with the parameters of the standard version."""
    from pyautoattack import AutoAttack as Standard  # slow to import, and not needed otherwise

    norm = _NORMS[threat.norm]
    suite = Standard(model, norm=norm, eps=threat.eps, seed=seed, version="standard", device=device)
    if part.kind == "square":
        suite.square.n_queries = part.steps
        return suite.square
    if part.kind in ("apgd-ce", "apgd-dlr"):
        attack = suite.apgd
        attack.loss, attack.eot_iter = part.kind.removeprefix("apgd-"), part.eot
    else:
        attack = suite.apgd_targeted if part.kind == "apgd-t" else suite.fab
        attack.n_target_classes = part.targets  # the preset of the version is 9
    if part.kind == "fab-t":
        attack.targeted = True
    attack.logger, attack.n_restarts = _QUIET, part.restarts
    return attack


def _part(name: str) -> AutoPart:
    numbers = {key: int(number) for key, number in re.findall(r"(x|@eot)(\d+)", name)}
    return AutoPart(name, restarts=numbers.get("x", 1), eot=numbers.get("@eot", 1))


def _check_size(height: int, width: int, norm: str) -> None:
    """Raise if the package's Square attack cannot divide images of this size into tiles in this norm."""
    if min(height, width) < 5:
        raise UserError(f"square needs images of at least 5x5 pixels; these are {height}x{width}")
    # The package's l2 start puts tiles of this side next to each other, from this margin on; outside the
    # image it ignores tiles of one pixel, and fails on larger ones.
    side = height // 5
    margin = (height - 5 * side) // 2
    if norm == "l2" and side > 1 and any(margin + size // side * side > size for size in (height, width)):
        raise UserError(
            f"square, which is part of aa and aa-plus, cannot attack images of {height}x{width} pixels in l2:"
            " the package's tiles do not fit into them; use apgd-ce,apgd-t,fab-t, or aa-rand"
        )


_SUMMARIES = {
    "aa": "AutoAttack, standard version: four attacks in turn on the examples still correct",
    "aa-reduced": "AutoAttack without apgd-t, which is undefined for fewer than 4 classes; for those, `aa`"
    " runs this version",
    "aa-plus": "AutoAttack, plus version: six attacks, those without targets from 5 starts each",
    "aa-rand": "AutoAttack, rand version, for random models: two attacks, each gradient the mean of 20"
    " passes",
}
for _name, _summary in _SUMMARIES.items():
    _pattern = f"{_name}(?:{REDUCED})?" if _name in ("aa-plus", "aa-rand") else _name
    register(_name, _summary, pattern=_pattern, examples=(_name,))(AutoAttack)
_RESTARTS, _EOT = r"(?:x(?P<restarts>\d{1,3}))?", r"(?:@eot(?P<eot>\d{1,4}))?"
_OPTIONS = {
    "apgd-ce": _RESTARTS + _EOT,
    "apgd-dlr": _RESTARTS + _EOT,
    "fab": _RESTARTS,
    "square": r"(?P<queries>[1-9]\d{0,5})?",
}
for _name, _summary in PARTS.items():
    register(_name, _summary, pattern=_name + _OPTIONS.get(_name, ""), examples=(_name,))(AutoPart)


def _classes(model: nn.Module, x: Tensor) -> int:
    with torch.no_grad():
        return int(model(x[:1]).shape[1])
