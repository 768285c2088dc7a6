"""Accuracy under attacks, with the settings, the count and the interval of each number."""

from sora.evaluation.accuracy import BATCH, evaluate
from sora.evaluation.interval import wilson
from sora.evaluation.reliability import warnings_about
from sora.evaluation.result import Evaluation, verdict
from sora.evaluation.trust import Finding

__all__ = ["BATCH", "Evaluation", "Finding", "evaluate", "verdict", "warnings_about", "wilson"]
