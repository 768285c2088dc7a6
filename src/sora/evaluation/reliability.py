"""Signs that a robust accuracy should not be trusted."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from sora.attacks.autoattack import is_autoattack
from sora.evaluation.scores import Evaluation

FAR = 0.75  # AutoAttack accuracy below this share of PGD accuracy; usually the gap is a tenth
MANY_ZERO = 0.1  # share of examples without an input gradient
SQUARE_GAIN = 0.002  # share of examples that only Square breaks: AutoAttack's own limit
UNLIKELY = 0.025  # probability below which chance does not explain a number, as in a 95 % interval
_GRADIENT_ATTACKS = ("pgd", "apgd", "fab")  # not FGSM: thousands of queries are stronger than one step


def warnings_about(evaluation: Evaluation) -> list[str]:
    """List reasons to doubt the numbers of an evaluation."""
    return [*_about_numbers(evaluation), *_about_model(evaluation), *evaluation.void.values()]


def _about_numbers(evaluation: Evaluation) -> Iterator[str]:
    accuracy, attacks, n = evaluation.accuracy, evaluation.attacks, evaluation.n
    if evaluation.constant_class is not None:
        yield (
            f"the model predicts class {evaluation.constant_class} for everything: it has collapsed, and its"
            " robustness means nothing"
        )
    if evaluation.one_label and {"fgsm", "pgd10"} <= accuracy.keys():
        yield "all images are of one class: there is no verdict; evaluate images of several classes"
    clean, fgsm = accuracy.get("clean", 1.0), accuracy.get("fgsm", 0.0)
    if fgsm > clean:
        yield (
            f"FGSM accuracy ({fgsm:.1%}) exceeds clean accuracy ({clean:.1%}): the attack helps the model, "
            "a sign of catastrophic overfitting; trust PGD and AutoAttack only"
        )
    pgd = min((name for name in accuracy if name.startswith("pgd")), key=lambda a: accuracy[a], default=None)
    autoattack = min(filter(is_autoattack, accuracy), key=lambda name: accuracy[name], default=None)
    if pgd is not None and autoattack is not None:
        significant = attacks[autoattack]["high"] < attacks[pgd]["low"]
        if significant and accuracy[autoattack] < FAR * accuracy[pgd]:
            yield (
                f"accuracy under {pgd} ({accuracy[pgd]:.1%}) is far above AutoAttack's "
                f"({accuracy[autoattack]:.1%}): gradients are masked; quote AutoAttack"
            )
    broken = _broken_by_square(evaluation)
    if broken > SQUARE_GAIN * n and at_least(broken, n, SQUARE_GAIN) < UNLIKELY:
        yield (
            f"Square, which uses no gradients, breaks {broken} of {n} images that the gradient attacks"
            " leave: gradients may be masked; run the masking tests (--trust), and do not quote PGD"
        )


def _about_model(evaluation: Evaluation) -> Iterator[str]:
    zero = evaluation.zero_gradients
    if zero >= MANY_ZERO:
        yield (
            f"the input gradient of {zero:.0%} of the examples inspected is exactly zero: gradient attacks"
            " (fgsm, pgd, apgd) fail on them; trust square, which uses no gradients"
        )
    if evaluation.nonnegative:
        yield (
            "no output of the model is negative: they look like probabilities (softmax, sigmoid,"
            " exponential), which hide gradients; evaluate the logits before them"
        )
    if evaluation.randomised and all(own.get("eot", 1) == 1 for own in evaluation.settings.values()):
        yield (
            "two passes over the same images differ: the model is random, and attacks follow the gradient of"
            " one draw; use attacks that average it (aa-rand, pgd20@eot8)"
        )
    if evaluation.dynamic:
        yield (
            "the model computes gradients or changes itself in the forward pass: such dynamic defences need"
            " an attack of their own, and AutoAttack may overestimate them"
        )


def _broken_by_square(evaluation: Evaluation) -> int:
    """Count the images that gradient attacks leave and Square, last in AutoAttack's order, breaks."""
    parts = [own["broken"] for own in evaluation.settings.values() if own.get("broken")]
    counts = [broken["square"] for broken in parts if [*broken][-1] == "square"]
    gradient = [flags for name, flags in evaluation.robust.items() if name.startswith(_GRADIENT_ATTACKS)]
    if "square" in evaluation.robust and gradient:
        withstands = torch.stack(gradient).all(0)
        counts.append(int((withstands & ~evaluation.robust["square"]).sum()))
    return max(counts, default=0)


def at_least(successes: int, n: int, share: float) -> float:
    """Return the probability of so many successes or more in n trials that succeed with this probability."""
    logs = (
        math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
        + k * math.log(share) + (n - k) * math.log1p(-share)
        for k in range(successes)
    )  # fmt: skip
    return max(0.0, 1 - math.fsum(map(math.exp, logs)))
