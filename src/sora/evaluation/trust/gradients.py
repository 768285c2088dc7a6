"""Tests of the gradients that white-box attacks follow: do they exist, and do they lead upwards?"""

from __future__ import annotations

from sora._passes import cross_entropy
from sora.evaluation.finding import Finding, judged_share, not_applicable
from sora.evaluation.result import verdict
from sora.evaluation.trust.measurements import HALF, Measurements

NO_GRADIENT = 1e-30  # near the end of float32's range a gradient loses its digits and then becomes zero
FEW = 0.1  # share of images on which gradients may fail
BETTER = 0.05  # share of images that a weaker attack may break although PGD-10 does not
NOT_ATTACKED = "eps is 0: there is nothing to attack"


def zero_gradients(measured: Measurements) -> Finding:
    """Images whose input gradient is zero, not finite, or too small for float32: saturated logits."""
    size = measured.gradient_size
    count = int((~(size > NO_GRADIENT) | ~size.isfinite()).sum())
    text = f"{count} of {measured.n} images have no usable input gradient"
    advice = (
        "gradient attacks say nothing here: remove rounding, saturated softmax or large logit scales from the"
        " model that is attacked, or quote square and a transfer attack"
    )
    return judged_share("zero gradients", count, measured.n, FEW, text, advice)


def rising_loss(measured: Measurements) -> Finding:
    """Images whose loss ten ascent steps do not raise: more steps that do not help."""
    if measured.threat.eps == 0:
        return not_applicable("rising loss", NOT_ATTACKED)
    rows = measured.part(HALF)
    before = cross_entropy(measured.clean[rows], measured.y[rows], "none")
    count = int((~(measured.pgd.loss > before)).sum())
    text = f"PGD-10 does not raise the loss of {count} of {len(rows)} images"
    advice = "gradients do not describe the loss; use attacks without them (square), or with EOT"
    return judged_share("rising loss", count, len(rows), FEW, text, advice)


def more_steps(measured: Measurements) -> Finding:
    """Images that one step breaks and ten steps do not."""
    if measured.threat.eps == 0:
        return not_applicable("more steps", NOT_ATTACKED)
    rows = measured.part(HALF)
    count = int((measured.pgd.correct & ~measured.fgsm[rows]).sum())
    text = f"FGSM breaks {count} of {len(rows)} images that PGD-10 leaves"
    advice = "ten steps must be stronger than one: quote the worst case over attacks, and run aa or pgd50x10"
    return judged_share("more steps", count, len(rows), BETTER, text, advice)


def single_step(measured: Measurements) -> Finding:
    """Catastrophic overfitting: the model withstands one step and not ten. The rule is the verdict's."""
    name = "single step"
    if measured.threat.eps == 0:
        return not_applicable(name, NOT_ATTACKED)
    rows = measured.part(HALF)
    n = len(rows)
    correct = {
        "clean": measured.clean[rows].argmax(1) == measured.y[rows],
        "fgsm": measured.fgsm[rows],
        "pgd10": measured.pgd.correct,
    }
    accuracy = {attack: int(flags.sum()) / n for attack, flags in correct.items()}
    if accuracy["fgsm"] < accuracy["clean"] / 2:
        return not_applicable(
            name, f"accuracy under FGSM is {accuracy['fgsm']:.1%}: one step breaks it already"
        )
    failed = verdict(accuracy, n, measured.chance) == "overfitted"
    gap = accuracy["fgsm"] - accuracy["pgd10"]
    text = f"accuracy is {accuracy['fgsm']:.1%} under FGSM and {accuracy['pgd10']:.1%} under PGD-10"
    advice = "the model is overfitted to one step; retrain it, e.g. with sora, and never quote FGSM"
    # Allowed: three quarters of what FGSM leaves, for a model that withstands FGSM.
    threshold = 0.75 * accuracy["fgsm"]
    return Finding(name, "failed" if failed else "passed", text, gap, threshold, n, advice if failed else "")
