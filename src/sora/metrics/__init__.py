"""Numbers of one batch that show catastrophic overfitting (appendix J of the paper), found by name.

`measure(model, x, y, threat, ("kl", "pgd"))` computes some of them.
"""

from sora.metrics._batch import AttackedBatch, GradientAndLogits
from sora.metrics._registry import METRICS, Info, Scale, check_metrics, create, info, measure, names, register

__all__ = [
    "AttackedBatch",
    "GradientAndLogits",
    "Info",
    "Scale",
    "check_metrics",
    "create",
    "info",
    "measure",
    "names",
    "register",
]

METRICS.discover()  # so that the order of names does not depend on who imports what
