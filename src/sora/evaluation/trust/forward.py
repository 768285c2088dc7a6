"""Tests of the forward pass: is a prediction a function of the image alone?"""

from __future__ import annotations

from sora.evaluation._checks import RANDOM
from sora.evaluation.finding import Finding, judged, not_applicable
from sora.evaluation.trust.measurements import Measurements

BATCH_DEPENDENT = 1e-2  # relative difference of logits; TF32 convolutions of other batch sizes reach 1e-3


def evaluation_mode(measured: Measurements) -> Finding:
    """Modules that stay in training mode although the model was put into evaluation mode."""
    _ = measured.clean  # a forward pass may switch modes as well
    left = [name or "the model" for name, module in measured.model.named_modules() if module.training]
    text = "no module is in training mode"
    if left:
        text = f"{len(left)} modules stay in training mode after eval(), e.g. {left[0]}"
    advice = "do not override train() or call it in forward(); evaluate a model whose eval() works"
    return judged("evaluation mode", len(left), 0, measured.n, text, advice)


def repeated_pass(measured: Measurements) -> Finding:
    """Randomness: two passes over the same images differ (AutoAttack's check, with its threshold)."""
    largest = float(measured.repeated.max())
    text = f"logits of two passes over the same images differ by {largest:.1e} of their size"
    advice = "the model is random: evaluate it with aa-rand or pgd20@eot8, which average gradients"
    return judged("repeated pass", largest, RANDOM, measured.n, text, advice)


def other_batch(measured: Measurements) -> Finding:
    """Predictions that depend on the other images of a batch, as with batch statistics."""
    name = "other batch"
    if float(measured.repeated.max()) > RANDOM:
        return not_applicable(name, "two passes over the same batch differ already")
    if measured.n < 4:
        return not_applicable(name, f"{measured.n} images cannot be divided into other batches")
    largest = float(measured.other_batches.max())
    text = f"logits of an image among other images differ by {largest:.1e} of their size"
    advice = "let the model use running statistics (BatchNorm in evaluation mode), not those of the batch"
    return judged(name, largest, BATCH_DEPENDENT, measured.n, text, advice)
