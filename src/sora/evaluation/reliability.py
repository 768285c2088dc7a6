"""Signs that a robust accuracy should not be trusted."""

from __future__ import annotations

import torch

from sora.attacks.autoattack import is_autoattack
from sora.evaluation.interval import at_least
from sora.evaluation.result import Evaluation

FAR = 0.75  # AutoAttack accuracy below this share of PGD accuracy; usually the gap is a tenth
MANY_ZERO = 0.1  # share of examples without an input gradient
SQUARE_GAIN = 0.002  # share of examples that only Square breaks: AutoAttack's own limit
UNLIKELY = 0.025  # probability below which chance does not explain a number, as in a 95 % interval
_GRADIENT_ATTACKS = ("pgd", "apgd", "fab")  # not FGSM: thousands of queries are stronger than one step


def warnings_about(evaluation: Evaluation) -> list[str]:
    """Reasons to doubt the numbers of an evaluation; empty if there are none."""
    checks = (
        _one_class,
        _one_label,
        _fgsm_above_clean,
        _pgd_above_autoattack,
        _square_below_gradients,
        _zero_gradients,
        _nonnegative,
        _randomised,
        _dynamic,
    )
    messages = [message for check in checks if (message := check(evaluation))]
    return [*messages, *evaluation.void.values()]


def _one_class(evaluation: Evaluation) -> str | None:
    predicted = evaluation.constant_class
    if predicted is None:
        return None
    return (
        f"the model predicts class {predicted} for everything: it has collapsed, and its robustness means"
        " nothing"
    )


def _one_label(evaluation: Evaluation) -> str | None:
    if not evaluation.one_label or not {"fgsm", "pgd10"} <= evaluation.accuracy.keys():
        return None
    return "all images are of one class: there is no verdict; evaluate images of several classes"


def _fgsm_above_clean(evaluation: Evaluation) -> str | None:
    clean, fgsm = evaluation.accuracy.get("clean"), evaluation.accuracy.get("fgsm")
    if clean is None or fgsm is None or fgsm <= clean:
        return None
    return (
        f"FGSM accuracy ({fgsm:.1%}) exceeds clean accuracy ({clean:.1%}): the attack helps the model, "
        "a sign of catastrophic overfitting; trust PGD and AutoAttack only"
    )


def _pgd_above_autoattack(evaluation: Evaluation) -> str | None:
    accuracy, attacks = evaluation.accuracy, evaluation.attacks
    versions = [name for name in accuracy if is_autoattack(name)]
    pgd_names = [name for name in accuracy if name.startswith("pgd")]
    if not versions or not pgd_names:
        return None
    autoattack = min(versions, key=lambda name: accuracy[name])
    pgd = min(pgd_names, key=lambda name: accuracy[name])
    significant = attacks[autoattack]["high"] < attacks[pgd]["low"]
    if not significant or accuracy[autoattack] >= FAR * accuracy[pgd]:
        return None
    return (
        f"accuracy under {pgd} ({accuracy[pgd]:.1%}) is far above AutoAttack's "
        f"({accuracy[autoattack]:.1%}): gradients are masked; quote AutoAttack"
    )


def _square_below_gradients(evaluation: Evaluation) -> str | None:
    """AutoAttack's own alarm: Square, last in its order, breaks what gradient attacks could not."""
    parts = [own["broken"] for own in evaluation.settings.values() if own.get("broken")]
    counts = [broken["square"] for broken in parts if [*broken][-1] == "square"]
    gradient = [flags for name, flags in evaluation.robust.items() if name.startswith(_GRADIENT_ATTACKS)]
    if "square" in evaluation.robust and gradient:
        withstands = torch.stack(gradient).all(0)
        counts.append(int((withstands & ~evaluation.robust["square"]).sum()))
    most = max(counts, default=0)
    chance = at_least(most, evaluation.n, SQUARE_GAIN)
    if chance >= UNLIKELY or most <= SQUARE_GAIN * evaluation.n:
        return None
    return (
        f"Square, which uses no gradients, breaks {most} of {evaluation.n} images that the gradient attacks"
        " leave: gradients may be masked; run the masking tests (--trust), and do not quote PGD"
    )


def _zero_gradients(evaluation: Evaluation) -> str | None:
    if evaluation.zero_gradients < MANY_ZERO:
        return None
    return (
        f"the input gradient of {evaluation.zero_gradients:.0%} of the examples inspected is exactly zero: "
        "gradient attacks (fgsm, pgd, apgd) fail on them; trust square, which uses no gradients"
    )


def _nonnegative(evaluation: Evaluation) -> str | None:
    if not evaluation.nonnegative:
        return None
    return (
        "no output of the model is negative: they look like probabilities (softmax, sigmoid, exponential),"
        " which hide gradients; evaluate the logits before them"
    )


def _randomised(evaluation: Evaluation) -> str | None:
    if not evaluation.randomised or any(own.get("eot", 1) > 1 for own in evaluation.settings.values()):
        return None
    return (
        "two passes over the same images differ: the model is random, and attacks follow the gradient of one"
        " draw; use attacks that average it (aa-rand, pgd20@eot8)"
    )


def _dynamic(evaluation: Evaluation) -> str | None:
    if not evaluation.dynamic:
        return None
    return (
        "the model computes gradients or changes itself in the forward pass: such dynamic defences need an"
        " attack of their own, and AutoAttack may overestimate them"
    )
