"""Accuracy under attacks, with the settings, the count and the interval of each number."""

from sora.evaluation._accuracy import BATCH, evaluate
from sora.evaluation._doubts import doubts
from sora.evaluation._result import Evaluation, verdict, wilson

__all__ = ["BATCH", "Evaluation", "doubts", "evaluate", "verdict", "wilson"]
