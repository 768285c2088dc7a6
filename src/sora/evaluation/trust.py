"""Masking tests: signs that attacks fail on a model for reasons other than robustness.

Each quantity is measured once, on as many images as keep all tests together cheap. Passes per image of the
evaluation, a forward pass counted as 1 and a gradient as 2; PGD-10 is 22:

| on | quantity | passes |
| --- | --- | ---: |
| all images (at most 512) | clean, repeated, other batch, gradient, FGSM | 6 |
| every 2nd | PGD-10, noise | 12 |
| every 4th | PGD-10 at a large radius, transfer from the smoothed model, from a second model | 5 + 6 + 6 |
| every 8th | Square, on the images PGD-10 leaves | at most 10 |

At most 45 together, 39 without a second model. Below 128 images the smaller parts have at least 16.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from sora._passes import Loss, ascend, bare, cross_entropy, frozen, input_gradient, precise
from sora._seeds import mix, seeded
from sora.attacks import create
from sora.attacks.pgd import STEP
from sora.errors import UserError
from sora.evaluation.examples import Examples
from sora.evaluation.scores import verdict, wilson
from sora.evaluation.smoothed import Smoothed
from sora.evaluation.validity import RANDOM, relative_difference
from sora.threat import Threat

if TYPE_CHECKING:
    from sora.evaluation.accuracy import EvaluationOptions

MOST = 512  # images
LEAST = 16  # images in the smaller parts
HALF, QUARTER, EIGHTH = 2, 4, 8
STEPS = 10  # of PGD
NOISE_DRAWS = 3
QUERIES = 75  # of Square

BATCH_DEPENDENT = 1e-2  # relative difference of logits; TF32 convolutions of other batch sizes reach 1e-3
NO_GRADIENT = 1e-30  # near the end of float32's range a gradient loses its digits and then becomes zero
FEW = 0.1  # share of images on which gradients may fail
BETTER = 0.05  # share of images that a weaker attack may break although PGD-10 does not

TestOutcome = Literal["passed", "failed", "not applicable"]


@dataclass(frozen=True)
class Finding:
    """The outcome of one masking test: one line with its number, its threshold and what to do."""

    test: str
    outcome: TestOutcome
    text: str  # what was measured, or why the test does not apply
    value: float | None = None
    threshold: float | None = None  # a failure is above it; a share of images with its 95 % interval
    n: int = 0  # images measured
    advice: str = ""  # what to do, if the test has failed


class NotApplicable(Exception):
    """The reason why a test says nothing about a model."""


def _judged(failed: bool, value: float, threshold: float, n: int, text: str, advice: str) -> Finding:
    outcome: TestOutcome = "failed" if failed else "passed"
    return Finding("", outcome, text, value, threshold, n, advice if failed else "")


def _judge_share(count: int, n: int, threshold: float, text: str, advice: str) -> Finding:
    """Judge a share of images, which fails only if its whole 95 % interval lies above the threshold."""
    return _judged(wilson(count, n)[0] > threshold, count / n, threshold, n, text, advice)


def masking_tests(
    model: nn.Module, examples: Examples, threat: Threat, device: torch.device, options: EvaluationOptions
) -> list[Finding]:
    """Run all tests on a model, in evaluation mode and in the order they are printed.

    At most 512 evenly spaced examples are used. The options give the number of images passed together, the
    seed of all random numbers and the second model, of the same inputs and classes.
    """
    model, source = bare(model), options.trust_source
    if source is not None:
        source = bare(source).to(device)
    stream = mix(options.seed, zlib.crc32(b"trust"))
    with frozen(model), nullcontext() if source is None else frozen(source), seeded(stream):
        measured, findings = Measurements(model, source, examples, threat, device, options.batch_size), []
        for name, test in TESTS.items():
            try:
                findings.append(replace(test(measured), test=name))
            except NotApplicable as reason:
                findings.append(Finding(name, "not applicable", str(reason)))
    return findings


class Measurements:
    """One model, some of the images of an evaluation, and what was measured on them so far."""

    def __init__(
        self,
        model: nn.Module,
        source: nn.Module | None,
        examples: Examples,
        threat: Threat,
        device: torch.device,
        batch_size: int,
    ) -> None:
        self.model, self.threat, self.source = model, threat, source
        self.device, self.batch_size = device, batch_size
        total = len(examples.labels)
        self.n = min(total, MOST)
        self.x, self.y = examples.take(torch.arange(self.n) * total // self.n, torch.device("cpu"))
        self.chance = int(self.y.bincount().max()) / self.n

    def part(self, stride: int) -> Tensor:
        """Return the positions of every second, fourth or eighth image, of more if those are under 16."""
        while stride > 1 and self.n // stride < LEAST:
            stride //= 2
        return torch.arange(0, self.n, stride)

    def each_batch(self, function: Callable[[Tensor, Tensor], Tensor], rows: Tensor) -> Tensor:
        """Apply a function of images and labels to these rows, batch by batch."""
        chunks = torch.split(rows, self.batch_size)
        batches = ((self.x[chunk].to(self.device), self.y[chunk].to(self.device)) for chunk in chunks)
        return torch.cat([function(x, y).cpu() for x, y in batches])

    @torch.no_grad()
    def logits(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the model's output for a batch."""
        return self.model(x).detach()  # type: ignore[no-any-return]

    def require_radius(self) -> None:
        """Raise if the radius is 0: tests that attack do not apply then."""
        if self.threat.eps == 0:
            raise NotApplicable("eps is 0: there is nothing to attack")

    @cached_property
    def clean(self) -> Tensor:
        """Logits of all images."""
        return self.each_batch(self.logits, torch.arange(self.n))

    @cached_property
    def repeated(self) -> float:
        """How far a second pass over the same batches differs at most, relative to the logits."""
        again = self.each_batch(self.logits, torch.arange(self.n))
        return float(relative_difference(self.clean, again).max())

    @cached_property
    def fgsm(self) -> tuple[Tensor, Tensor]:
        """Which images withstand FGSM, and the largest absolute component of each one's input gradient."""

        def measure(x: Tensor, y: Tensor) -> Tensor:
            gradient = input_gradient(self.model, x, y)[0] * len(x)  # of the sum of the losses
            moved = self.threat.step(x, gradient, self.threat.eps)
            correct = self.logits(moved, y).argmax(1) == y
            return torch.stack((correct.to(x.dtype), gradient.flatten(1).abs().amax(1)), 1)

        correct, size = self.each_batch(measure, torch.arange(self.n)).unbind(1)
        return correct > 0, size

    @cached_property
    def pgd(self) -> tuple[Tensor, Tensor]:
        """Which of every second image withstand PGD-10 from a random start, and their loss."""
        self.require_radius()
        return self.attack(self.model, self.part(HALF), self.threat)

    def left_by_pgd(self, stride: int) -> tuple[Tensor, Tensor]:
        """Return the positions of a part of the images, and which of them withstand PGD-10."""
        rows = self.part(stride)
        correct = self.pgd[0][torch.searchsorted(self.part(HALF), rows)]
        if not bool(correct.any()):
            raise NotApplicable("PGD-10 leaves no image to break")
        return rows, correct

    def attack(
        self,
        source: nn.Module,
        rows: Tensor,
        threat: Threat,
        loss: Callable[[Tensor], Loss] = lambda y: lambda logits: cross_entropy(logits, y),
        *,
        random_start: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Attack a model by PGD-10; return which images the measured model still gets right, and its loss."""

        def measure(x: Tensor, y: Tensor) -> Tensor:
            start = threat.clamp(x + threat.random_start(x)) if random_start else x
            at = ascend(loss(y), source, x, start, threat, STEPS, STEP * threat.eps).x_adv
            logits = self.logits(at, y)
            correct = (logits.argmax(1) == y).to(at.dtype)
            return torch.stack((correct, cross_entropy(logits, y, "none").to(at.dtype)), 1)

        correct, loss_there = self.each_batch(measure, rows).unbind(1)
        return correct > 0, loss_there


# Tests of the forward pass: is a prediction a function of the image alone?


def evaluation_mode(measured: Measurements) -> Finding:
    """Find modules that stay in training mode although the model was put into evaluation mode."""
    _ = measured.clean  # a forward pass may switch modes as well
    left = [name or "the model" for name, module in measured.model.named_modules() if module.training]
    text = "no module is in training mode"
    if left:
        text = f"{len(left)} modules stay in training mode after eval(), e.g. {left[0]}"
    advice = "do not override train() or call it in forward(); evaluate a model whose eval() works"
    return _judged(bool(left), len(left), 0, measured.n, text, advice)


def repeated_pass(measured: Measurements) -> Finding:
    """Compare two passes over the same images (AutoAttack's check for randomness, with its threshold)."""
    largest = measured.repeated
    text = f"logits of two passes over the same images differ by {largest:.1e} of their size"
    advice = "the model is random: evaluate it with aa-rand or pgd20@eot8, which average gradients"
    return _judged(not largest <= RANDOM, largest, RANDOM, measured.n, text, advice)  # NaN fails


def other_batch(measured: Measurements) -> Finding:
    """Find predictions that depend on the other images of a batch, as with batch statistics."""
    if measured.repeated > RANDOM:
        raise NotApplicable("two passes over the same batch differ already")
    if measured.n < 4:
        raise NotApplicable(f"{measured.n} images cannot be divided into other batches")
    rows = torch.arange(measured.n)
    halves = 2 * -(-measured.n // measured.batch_size)
    # Interleaved: every batch has neighbours that were far apart before, and none is a single image.
    chunks = [rows[start::halves] for start in range(halves)]
    if measured.n < 2 * halves:
        chunks = [torch.cat((rows[::2], rows[1::2]))]
    mixed = torch.cat([measured.each_batch(measured.logits, chunk) for chunk in chunks])
    largest = float(relative_difference(measured.clean[torch.cat(chunks)], mixed).max())
    text = f"logits of an image among other images differ by {largest:.1e} of their size"
    advice = "let the model use running statistics (BatchNorm in evaluation mode), not those of the batch"
    return _judged(not largest <= BATCH_DEPENDENT, largest, BATCH_DEPENDENT, measured.n, text, advice)


# Tests of the gradients that white-box attacks follow: do they exist, and do they lead upwards?


def zero_gradients(measured: Measurements) -> Finding:
    """Count images whose input gradient is zero, not finite, or too small for float32."""
    _, size = measured.fgsm
    count = int((~(size > NO_GRADIENT) | ~size.isfinite()).sum())
    text = f"{count} of {measured.n} images have no usable input gradient"
    advice = (
        "gradient attacks say nothing here: remove rounding, saturated softmax or large logit scales from the"
        " model that is attacked, or quote square and a transfer attack"
    )
    return _judge_share(count, measured.n, FEW, text, advice)


def rising_loss(measured: Measurements) -> Finding:
    """Count images whose loss ten ascent steps do not raise."""
    rows = measured.part(HALF)
    before = cross_entropy(measured.clean[rows], measured.y[rows], "none")
    count = int((~(measured.pgd[1] > before)).sum())
    text = f"PGD-10 does not raise the loss of {count} of {len(rows)} images"
    advice = "gradients do not describe the loss; use attacks without them (square), or with EOT"
    return _judge_share(count, len(rows), FEW, text, advice)


def more_steps(measured: Measurements) -> Finding:
    """Count images that one step breaks and ten steps do not."""
    rows = measured.part(HALF)
    count = int((measured.pgd[0] & ~measured.fgsm[0][rows]).sum())
    text = f"FGSM breaks {count} of {len(rows)} images that PGD-10 leaves"
    advice = "ten steps must be stronger than one: quote the worst case over attacks, and run aa or pgd50x10"
    return _judge_share(count, len(rows), BETTER, text, advice)


def single_step(measured: Measurements) -> Finding:
    """Find catastrophic overfitting: the model withstands one step and not ten. The rule is the verdict's."""
    rows = measured.part(HALF)
    n = len(rows)
    correct = {
        "clean": measured.clean[rows].argmax(1) == measured.y[rows],
        "fgsm": measured.fgsm[0][rows],
        "pgd10": measured.pgd[0],
    }
    accuracy = {attack: int(flags.sum()) / n for attack, flags in correct.items()}
    if accuracy["fgsm"] < accuracy["clean"] / 2:
        raise NotApplicable(f"accuracy under FGSM is {accuracy['fgsm']:.1%}: one step breaks it already")
    text = f"accuracy is {accuracy['fgsm']:.1%} under FGSM and {accuracy['pgd10']:.1%} under PGD-10"
    advice = "the model is overfitted to one step; retrain it, e.g. with sora, and never quote FGSM"
    failed = verdict(accuracy, n, measured.chance) == "overfitted"
    # Allowed: three quarters of what FGSM leaves, for a model that withstands FGSM.
    gap, threshold = accuracy["fgsm"] - accuracy["pgd10"], 0.75 * accuracy["fgsm"]
    return _judged(failed, gap, threshold, n, text, advice)


# Tests of strength: attacks that know less must not beat PGD-10, and a large radius must break the model.


def large_eps(measured: Measurements) -> Finding:
    """Attack with a radius that reaches a uniform grey image: accuracy must be at most chance."""
    measured.require_radius()
    rows, box, eps = measured.part(QUARTER), measured.threat.box, measured.threat.eps
    width = box[1] - box[0] if box is not None else float(measured.x.max() - measured.x.min())
    size = math.sqrt(measured.x[0].numel()) if measured.threat.norm == "l2" else 1.0
    radius = max(width / 2 * size, eps)
    large = measured.threat.scaled(radius / eps)
    count = int(measured.attack(measured.model, rows, large, random_start=False)[0].sum())
    text = f"accuracy at eps {radius:.3g} is {count / len(rows):.1%}; chance is {measured.chance:.1%}"
    advice = "no model can withstand this radius, so it is the attack that fails; use square or aa"
    return _judge_share(count, len(rows), measured.chance, text, advice)


def noise(measured: Measurements) -> Finding:
    """Compare PGD-10 with a few random perturbations of full size."""
    rows, left = measured.left_by_pgd(HALF)

    def withstands(x: Tensor, y: Tensor) -> Tensor:
        correct = torch.ones_like(y, dtype=torch.bool)
        for _ in range(NOISE_DRAWS):
            delta = measured.threat.direction(torch.randn_like(x)) * measured.threat.eps
            correct &= measured.logits(measured.threat.inside(x, delta), y).argmax(1) == y
        return correct

    return _beats_pgd(f"random noise ({NOISE_DRAWS} draws)", left, measured.each_batch(withstands, rows))


def square(measured: Measurements) -> Finding:
    """Compare PGD-10 with Square, which uses no gradients."""
    rows, left = measured.left_by_pgd(EIGHTH)
    attack, seed = create(f"square{QUERIES}"), int(torch.randint(2**31, ()))

    def withstands(x: Tensor, y: Tensor) -> Tensor:
        moved = attack(measured.model, x, y, measured.threat, seed)
        return measured.logits(moved, y).argmax(1) == y

    correct = torch.zeros_like(left)
    try:
        correct[left] = measured.each_batch(withstands, rows[left])
    except UserError as error:
        raise NotApplicable(str(error)) from None
    return _beats_pgd(f"Square ({QUERIES} queries)", left, correct)


def smoothed_transfer(measured: Measurements) -> Finding:
    """Transfer PGD from the same model with smooth activations and a loss that cannot saturate."""
    return _transfer(measured, "PGD-10 on the smoothed model", Smoothed(measured.model))


def second_model(measured: Measurements) -> Finding:
    """Transfer PGD from another model."""
    if measured.source is None:
        raise NotApplicable("no second model was given (--trust-source)")
    return _transfer(measured, "PGD-10 on the second model", measured.source)


def _transfer(measured: Measurements, what: str, source: nn.Module) -> Finding:
    rows, left = measured.left_by_pgd(QUARTER)
    try:
        correct = measured.attack(source, rows, measured.threat, _margin)[0]
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise NotApplicable(f"the source of the attack does not run: {reason}") from None
    return _beats_pgd(what, left, correct)


def _beats_pgd(what: str, left: Tensor, correct: Tensor) -> Finding:
    """Judge an attack by the images that PGD-10 leaves correctly classified and it does not."""
    count = int((left & ~correct).sum())
    text = f"{what} breaks {count} of {len(left)} images that PGD-10 leaves"
    advice = (
        "a weaker attack succeeds where PGD-10 fails: gradients are masked; report aa, or bypass the part of"
        " the model that masks them"
    )
    return _judge_share(count, len(left), BETTER, text, advice)


def _margin(y: Tensor) -> Loss:
    """Return the loss that is the highest other logit minus the true one: it does not saturate."""

    def loss(logits: Tensor) -> Tensor:
        z = precise(logits)
        true = z.gather(1, y[:, None])
        others = z.scatter(1, y[:, None], -torch.inf).amax(1, keepdim=True)
        return (others - true).mean()

    return loss


_FORWARD = (evaluation_mode, repeated_pass, other_batch)
_GRADIENTS = (zero_gradients, rising_loss, more_steps, single_step)
_STRENGTH = (large_eps, noise, square, smoothed_transfer, second_model)
TESTS = {test.__name__.replace("_", " "): test for test in (*_FORWARD, *_GRADIENTS, *_STRENGTH)}
