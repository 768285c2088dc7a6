"""Tests of strength: attacks that know less must not beat PGD-10, and a large radius must break the model."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from sora._passes import Loss, precise
from sora.attacks import create
from sora.errors import UserError
from sora.evaluation.finding import Finding, judged_share, not_applicable
from sora.evaluation.trust.gradients import BETTER, NOT_ATTACKED
from sora.evaluation.trust.measurements import EIGHTH, HALF, NOISE_DRAWS, QUARTER, Measurements
from sora.evaluation.trust.smoothed import Smoothed

QUERIES = 75  # of Square
NOTHING_LEFT = "PGD-10 leaves no image to break"


def large_eps(measured: Measurements) -> Finding:
    """Accuracy at a radius that reaches a uniform grey image from everywhere: it must be at most chance."""
    name = "large eps"
    if measured.threat.eps == 0:
        return not_applicable(name, NOT_ATTACKED)
    rows = measured.part(QUARTER)
    box = measured.threat.box
    width = box[1] - box[0] if box is not None else float(measured.x.max() - measured.x.min())
    size = math.sqrt(measured.x[0].numel()) if measured.threat.norm == "l2" else 1.0
    radius = max(width / 2 * size, measured.threat.eps)
    threat = measured.threat.scaled(radius / measured.threat.eps)
    count = int(measured.attack(measured.model, rows, threat, random_start=False).correct.sum())
    text = f"accuracy at eps {radius:.3g} is {count / len(rows):.1%}; chance is {measured.chance:.1%}"
    advice = "no model can withstand this radius, so it is the attack that fails; use square or aa"
    return judged_share(name, count, len(rows), measured.chance, text, advice)


def noise(measured: Measurements) -> Finding:
    """Random perturbations of full size that succeed where PGD-10 fails."""
    rows = measured.part(HALF)
    if measured.threat.eps == 0 or not bool(measured.pgd.correct.any()):
        return not_applicable("noise", NOTHING_LEFT if measured.threat.eps else NOT_ATTACKED)
    what = f"random noise ({NOISE_DRAWS} draws)"
    return _beats_pgd(measured, "noise", what, rows, measured.noise(rows))


def square(measured: Measurements) -> Finding:
    """Square, which uses no gradients, against PGD-10."""
    name = "square"
    rows = measured.part(EIGHTH)
    left = rows[measured.correct_under_pgd(rows)]
    if measured.threat.eps == 0 or len(left) == 0:
        return not_applicable(name, NOTHING_LEFT if measured.threat.eps else NOT_ATTACKED)
    attack, seed = create(f"square{QUERIES}"), int(torch.randint(2**31, ()))

    def withstands(x: Tensor, y: Tensor) -> Tensor:
        moved = attack(measured.model, x, y, measured.threat, seed)
        with torch.no_grad():
            flags: Tensor = measured.model(moved).argmax(1) == y
        return flags

    try:
        flags = measured.each_batch(withstands, left)
    except UserError as error:
        return not_applicable(name, str(error))
    correct = torch.zeros(measured.n, dtype=torch.bool)
    correct[left] = flags
    return _beats_pgd(measured, name, f"Square ({QUERIES} queries)", rows, correct[rows])


def smoothed_transfer(measured: Measurements) -> Finding:
    """PGD on the same model with smooth activations and a loss that cannot saturate."""
    return _transfer(measured, "smoothed transfer", "PGD-10 on the smoothed model", Smoothed(measured.model))


def second_model(measured: Measurements, source: nn.Module | None) -> Finding:
    """PGD on another model."""
    if source is None:
        return not_applicable("second model", "no second model was given (--trust-source)")
    return _transfer(measured, "second model", "PGD-10 on the second model", source)


def _transfer(measured: Measurements, name: str, what: str, source: nn.Module) -> Finding:
    rows = measured.part(QUARTER)
    if measured.threat.eps == 0 or not bool(measured.correct_under_pgd(rows).any()):
        return not_applicable(name, NOTHING_LEFT if measured.threat.eps else NOT_ATTACKED)
    try:
        outcome = measured.attack(source, rows, measured.threat, _margin)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        return not_applicable(name, f"the source of the attack does not run: {reason}")
    return _beats_pgd(measured, name, what, rows, outcome.correct)


def _beats_pgd(measured: Measurements, name: str, what: str, rows: Tensor, correct: Tensor) -> Finding:
    count = int((measured.correct_under_pgd(rows) & ~correct).sum())
    text = f"{what} breaks {count} of {len(rows)} images that PGD-10 leaves"
    advice = "a weaker attack succeeds where PGD-10 fails: gradients are masked; report aa, or bypass the"
    return judged_share(name, count, len(rows), BETTER, text, f"{advice} part of the model that masks them")


def _margin(y: Tensor) -> Loss:
    """The highest other logit minus the true one: its gradient does not vanish with the logits' scale."""

    def loss(logits: Tensor) -> Tensor:
        z = precise(logits)
        true = z.gather(1, y[:, None])
        others = z.scatter(1, y[:, None], -torch.inf).amax(1, keepdim=True)
        return (others - true).mean()

    return loss
