"""Accuracy under attacks, with the settings, the count and the interval of each number."""

from sora.evaluation.accuracy import BATCH, EvaluationOptions, evaluate
from sora.evaluation.scores import Evaluation, verdict, wilson
from sora.evaluation.trust import Finding

__all__ = [
    "BATCH",
    "Evaluation",
    "EvaluationOptions",
    "Finding",
    "evaluate",
    "verdict",
    "wilson",
]
