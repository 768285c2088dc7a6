"""What a masking test returns: one line with its number, its threshold and what to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from sora.evaluation.interval import wilson

Outcome = Literal["passed", "failed", "not applicable"]


@dataclass(frozen=True)
class Finding:
    """The outcome of one masking test."""

    test: str
    outcome: Outcome
    text: str
    """What was measured, or why the test does not apply."""
    value: float | None = None
    threshold: float | None = None
    """Above it the test has failed; for shares of images, their 95 % interval must lie above it."""
    n: int = 0
    """The number of images measured."""
    advice: str = ""
    """What to do, if the test has failed."""

    def record(self) -> dict[str, Any]:
        """The finding in the form that files have."""
        return asdict(self)


def not_applicable(test: str, why: str) -> Finding:
    """A test that says nothing about this model."""
    return Finding(test, "not applicable", why)


def judged(test: str, value: float, threshold: float, n: int, text: str, advice: str) -> Finding:
    """A measured value, which must not exceed its threshold."""
    failed = not value <= threshold  # NaN fails
    return Finding(
        test, "failed" if failed else "passed", text, value, threshold, n, advice if failed else ""
    )


def judged_share(test: str, count: int, n: int, threshold: float, text: str, advice: str) -> Finding:
    """A share of images; the test fails only if the whole 95 % interval lies above the threshold."""
    failed = wilson(count, n)[0] > threshold
    outcome: Outcome = "failed" if failed else "passed"
    return Finding(test, outcome, text, count / n, threshold, n, advice if failed else "")
