"""Signs that a robust accuracy should not be believed, in words."""

from __future__ import annotations

from sora.evaluation._result import Evaluation

FAR = 0.75  # AutoAttack under this share of PGD; a healthy gap is a tenth
BLIND = 0.5  # share of examples without an input gradient


def doubts(found: Evaluation) -> list[str]:
    """What a careful reader would ask about these numbers; empty if nothing stands out."""
    return [text for text in (_one_class(found), _leak(found), _gap(found), _blind(found)) if text]


def _one_class(found: Evaluation) -> str | None:
    clean = found.predictions.get("clean")
    if clean is None or bool((clean != clean[0]).any()) or bool((found.labels == found.labels[0]).all()):
        return None
    return f"the model predicts class {int(clean[0])} for everything: it has collapsed, robustness is empty"


def _leak(found: Evaluation) -> str | None:
    clean, fgsm = found.accuracy.get("clean"), found.accuracy.get("fgsm")
    if clean is None or fgsm is None or fgsm <= clean:
        return None
    return (
        f"FGSM accuracy ({fgsm:.1%}) exceeds clean accuracy ({clean:.1%}): the attack helps the model, "
        "a mark of catastrophic overfitting; believe PGD and AutoAttack only"
    )


def _gap(found: Evaluation) -> str | None:
    strong = next((name for name in ("aa", "aa-reduced") if name in found.accuracy), None)
    weak = [name for name in found.accuracy if name.startswith("pgd")]
    if strong is None or not weak:
        return None
    pgd = min(weak, key=lambda name: found.accuracy[name])
    clear = found.attacks[strong]["high"] < found.attacks[pgd]["low"]
    if not clear or found.accuracy[strong] >= FAR * found.accuracy[pgd]:
        return None
    return (
        f"accuracy under {pgd} ({found.accuracy[pgd]:.1%}) is far above AutoAttack's "
        f"({found.accuracy[strong]:.1%}): gradients are masked; quote AutoAttack"
    )


def _blind(found: Evaluation) -> str | None:
    if found.zero_gradients <= BLIND:
        return None
    return (
        f"the input gradient of {found.zero_gradients:.0%} of the examples looked at is exactly zero: "
        "attacks by gradient (fgsm, pgd, apgd) are blind there; believe square, which needs none"
    )
