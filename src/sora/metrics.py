"""Numbers of one batch that show catastrophic overfitting (appendix J of the paper), found by name.

`measure(model, x, y, threat, ("kl", "pgd"))` computes some of them.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sora import curvature
from sora._checks import check_model, checking
from sora._passes import bare, frozen, gradient_of
from sora._registry import Entry, Registry
from sora._seeds import generator_for, uniform
from sora._task import PLAIN, Task
from sora.attacks import pgd
from sora.threat import Threat

__all__ = [
    "AttackedBatch",
    "GradientAndLogits",
    "MetricInfo",
    "Scale",
    "create",
    "info",
    "measure",
    "names",
    "register",
]

Scale = Literal["linear", "log"]


class GradientAndLogits(NamedTuple):
    """The results of one forward and one backward pass."""

    gradient: Tensor  # gradient of the mean loss with respect to the input
    logits: Tensor


class AttackedBatch:
    """A batch, its FGSM examples, and a frozen model's passes over both, each made once and only if needed.

    `x` are clean images, shape (B, ...), `y` their labels; the model is in evaluation mode; the task has the
    loss, and what is correct.
    """

    def __init__(
        self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int = 0, task: Task = PLAIN
    ) -> None:
        self.model, self.x, self.y, self.threat, self.seed, self.task = model, x, y, threat, seed, task

    def generator(self, stream: int) -> torch.Generator:
        """Return a new generator; metrics with different `stream` numbers draw independent numbers."""
        return generator_for(self.x.device, self.seed * 8 + stream)

    @cached_property
    def clean(self) -> GradientAndLogits:
        """The pass at the clean images."""
        return self.gradient_at(self.x)

    @cached_property
    def x_adv(self) -> Tensor:
        """The FGSM examples, without a random start."""
        return self.threat.step(self.x, self.clean.gradient, self.threat.eps)

    @cached_property
    def adversarial(self) -> GradientAndLogits:
        """The pass at the FGSM examples."""
        return self.gradient_at(self.x_adv)

    def gradient_at(self, z: Tensor) -> GradientAndLogits:
        """Return input gradient and logits at `z`."""
        return GradientAndLogits(*gradient_of(lambda out: self.task.loss_of(out, self.y), self.model, z))

    def losses_at(self, z: Tensor) -> Tensor:
        """Return each example's loss at `z`, without a graph."""
        with torch.no_grad():
            return self.task.loss_of(self.model(z), self.y, "none")

    def accuracy(self, logits: Tensor) -> Tensor:
        """Return the share of correct outputs; NaN if the task does not say which are correct."""
        right = self.task.right(logits, self.y)
        return torch.full((), torch.nan) if right is None else right.float().mean()


Function = Callable[[AttackedBatch], Tensor]


@dataclass(frozen=True)
class MetricInfo(Entry):
    """A metric, and how a plot over training draws it."""

    function: Function  # from a batch to a 0-d tensor
    scale: Scale = "linear"  # the axis it is drawn over
    needs_classes: bool = False  # whether it uses class probabilities


METRICS = Registry("metric", "sora.metrics", MetricInfo)
register, names, info = METRICS.register, METRICS.names, METRICS.info
_CHECKED: WeakKeyDictionary[nn.Module, set[object]] = WeakKeyDictionary()  # batches, by model


def create(name: str) -> Function:
    """Return the function of a metric."""
    return info(name).function


def measure(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    threat: Threat,
    metrics: Iterable[str] | None = None,
    seed: int = 0,
    task: Task = PLAIN,
) -> dict[str, float]:
    """Measure one batch in evaluation mode; weights, buffers, mode and flags stay as they were.

    Args:
        model: From inputs to logits.
        x: Images inside the box, shape (B, ...).
        y: Class labels, shape (B,).
        threat: The norm ball and the box.
        metrics: Their names; all if not given.
        seed: Seed of the random numbers some of them need; torch's own random state is not used.
        task: The loss, and what is correct; by default cross-entropy and classes.
    """
    functions = {name: create(name) for name in (names() if metrics is None else metrics)}
    check_model(model)
    for name in functions:
        if info(name).needs_classes:
            task.refuse(f"metric {name}")
    if not functions:
        return {}
    model = bare(model)
    done = _CHECKED.setdefault(model, set())
    with frozen(model), checking(model, x, y, threat, task, done=done, also=(threat, task)):
        batch = AttackedBatch(model, x, y, threat, seed, task)
        values = [function(batch).float() for function in functions.values()]
        return dict(zip(functions, torch.stack(values).tolist(), strict=True))


@register("gradalign", "cosine of the gradients at x and at a random point of the ball")
def grad_align(batch: AttackedBatch) -> Tensor:
    """Return GradAlign's cosine; the random point is not clamped to the box."""
    noisy = batch.x + batch.threat.random_start(batch.x, batch.generator(1))
    return curvature.pert_align(batch.clean.gradient, batch.gradient_at(noisy).gradient)


@register("pertalign", "PertAlign: cosine of the gradients at x and at the FGSM example")
def pert_align(batch: AttackedBatch) -> Tensor:
    """Return PertAlign of the clean images and their FGSM examples."""
    return curvature.pert_align(batch.clean.gradient, batch.adversarial.gradient)


@register("altpertalign", "AltPertAlign of the gradients at x and at the FGSM example")
def alt_pert_align(batch: AttackedBatch) -> Tensor:
    """Return AltPertAlign of the clean images and their FGSM examples."""
    return curvature.alt_pert_align(batch.clean.gradient, batch.adversarial.gradient)


@register("linearity", "linearity coefficient of the gradients at x and at the FGSM example")
def linearity(batch: AttackedBatch) -> Tensor:
    """Return the linearity coefficient of the clean images and their FGSM examples."""
    return curvature.linearity(batch.clean.gradient, batch.adversarial.gradient, batch.threat.norm)


@register("fgsm", "accuracy under FGSM")
def fgsm_accuracy(batch: AttackedBatch) -> Tensor:
    """Return the accuracy on the FGSM examples."""
    return batch.accuracy(batch.adversarial.logits)


@register("pgd", "accuracy under PGD-10")
def pgd_accuracy(batch: AttackedBatch) -> Tensor:
    """Return the accuracy under PGD-10 from a random start."""
    task = replace(batch.task, outputs=None)  # they are read already
    x_adv = pgd(batch.model, batch.x, batch.y, batch.threat, generator=batch.generator(3), task=task)
    with torch.no_grad():
        return batch.accuracy(batch.model(x_adv))


@register("aae", "share of FGSM examples whose loss is lower than that of the clean image")
def abnormal_share(batch: AttackedBatch) -> Tensor:
    """Return the share of abnormal adversarial examples (AAER)."""
    passes = (batch.clean, batch.adversarial)
    clean, adversarial = (batch.task.loss_of(each.logits, batch.y, "none") for each in passes)
    return (clean > adversarial).float().mean()


@register("kl", "KL divergence of the predictions on clean and FGSM images", scale="log", needs_classes=True)
def kl(batch: AttackedBatch) -> Tensor:
    """Return KL(P, Q) of the predictions P on the clean image and Q on the FGSM example, as in TRADES."""
    passes = (batch.clean, batch.adversarial)
    clean, adversarial = (F.log_softmax(each.logits.float(), 1) for each in passes)
    return F.kl_div(adversarial, clean, reduction="batchmean", log_target=True)


@register("elle", "squared deviation of the loss from linearity in the ball", scale="log")
def elle(batch: AttackedBatch) -> Tensor:
    """Return ELLE's squared gap between the loss and its linear interpolation between two random points."""
    x, generator = batch.x, batch.generator(2)
    a, b = (x + batch.threat.random_start(x, generator) for _ in range(2))
    weight = uniform(x.new_empty(len(x)), 0, 1, generator)
    between = torch.lerp(a, b, weight.view(-1, *[1] * (x.dim() - 1)))
    line = (1 - weight) * batch.losses_at(a) + weight * batch.losses_at(b)
    return (batch.losses_at(between) - line).square().mean()
