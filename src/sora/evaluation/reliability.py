"""Signs that a robust accuracy should not be trusted."""

from __future__ import annotations

from sora.evaluation.result import Evaluation

FAR = 0.75  # AutoAttack accuracy below this share of PGD accuracy; usually the gap is a tenth
MOSTLY_ZERO = 0.5  # share of examples without an input gradient


def warnings_about(evaluation: Evaluation) -> list[str]:
    """Reasons to doubt the numbers of an evaluation; empty if there are none."""
    checks = (_one_class, _fgsm_above_clean, _pgd_above_autoattack, _zero_gradients, _nonnegative)
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
    autoattack = next((name for name in ("aa", "aa-reduced") if name in accuracy), None)
    pgd_names = [name for name in accuracy if name.startswith("pgd")]
    if autoattack is None or not pgd_names:
        return None
    pgd = min(pgd_names, key=lambda name: accuracy[name])
    significant = attacks[autoattack]["high"] < attacks[pgd]["low"]
    if not significant or accuracy[autoattack] >= FAR * accuracy[pgd]:
        return None
    return (
        f"accuracy under {pgd} ({accuracy[pgd]:.1%}) is far above AutoAttack's "
        f"({accuracy[autoattack]:.1%}): gradients are masked; quote AutoAttack"
    )


def _zero_gradients(evaluation: Evaluation) -> str | None:
    if evaluation.zero_gradients <= MOSTLY_ZERO:
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
