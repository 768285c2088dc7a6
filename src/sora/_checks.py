"""Checks of the inputs of methods and attacks.

They read tensor values on the host, so a training step runs them only for the first batch of each shape.
"""

from __future__ import annotations

import warnings

from torch import Tensor

from sora.errors import UserError
from sora.threat import Threat

TOLERANCE = 1e-4  # how far rounding may move a pixel outside the box


def check_inputs(x: Tensor, y: Tensor, threat: Threat) -> None:
    """Raise if a batch is not valid input for a method or an attack."""
    if not x.is_floating_point():
        raise UserError(f"inputs are {x.dtype}; expected floats: divide uint8 images by 255")
    if y.shape != x.shape[:1] or y.is_floating_point():
        raise UserError(
            f"labels have shape {tuple(y.shape)} and type {y.dtype}; expected {len(x)} whole numbers"
        )
    if not bool(x.isfinite().all()):
        raise UserError("inputs contain NaN or infinity; clean the data first")
    if threat.box is not None:
        low, high = float(x.min()), float(x.max())
        if low < threat.box[0] - TOLERANCE or high > threat.box[1] + TOLERANCE:
            raise UserError(
                f"inputs lie in [{low:.3g}, {high:.3g}], outside the box {threat.box}; pass un-normalised"
                " images (normalise inside the model), or box=None for data without a pixel range"
            )


def check_logits(logits: Tensor, y: Tensor) -> None:
    """Raise if a model's output does not match the labels; warn if it looks like probabilities."""
    if not isinstance(logits, Tensor) or logits.dim() != 2:
        what = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        raise UserError(f"the model returns {what}; it must return logits of shape (batch, classes)")
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= logits.shape[1]:
        raise UserError(
            f"labels run from {low} to {high}, but the model has {logits.shape[1]} classes: 0 to"
            f" {logits.shape[1] - 1}"
        )
    rows = logits.detach()
    if bool((rows >= 0).all()) and bool(((rows.sum(1) - 1).abs() < 1e-3).all()):
        warnings.warn("the model seems to return probabilities; pass logits (no softmax)", stacklevel=2)
