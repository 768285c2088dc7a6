"""Accuracy under attacks, with the settings, the count and the interval of each number."""

from sora.evaluation._accuracy import evaluate
from sora.evaluation._result import Evaluation, verdict, wilson

__all__ = ["Evaluation", "evaluate", "verdict", "wilson"]
