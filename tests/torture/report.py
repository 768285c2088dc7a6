"""What the bench counts, and the table it prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

COUNTS = ("killed", "identical", "refused", "harmless", "different", "accepted", "raw", "executed", "hung")
MUST_BE_ZERO = ("different", "accepted", "raw", "executed", "hung")
MEMORY_LIMIT_MB = 1536


@dataclass
class Outcome:
    """What one case found."""

    part: str
    case: int
    counts: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    inputs: int = 0
    """Bad command lines, calls, damaged or hostile files tried."""
    seconds: float = 0.0
    peak_mb: float = 0.0

    def add(self, what: str, failure: str = "") -> None:
        """Count one event; a failure also says what happened."""
        assert what in COUNTS
        self.counts[what] = self.counts.get(what, 0) + 1
        if failure:
            self.failures.append(f"{what}: {failure}")

    def compare(self, what: str, differences: Sequence[str]) -> bool:
        """Count a result by how it differs from that of an undisturbed command; whether it does not."""
        if differences:
            self.add("different", f"{what}: {', '.join(differences)}")
        else:
            self.add("identical")
        return not differences

    def saw_memory(self, megabytes: float, what: str) -> None:
        """Record a child's peak; above the limit it is a failure."""
        self.peak_mb = max(self.peak_mb, megabytes)
        if megabytes > MEMORY_LIMIT_MB:
            self.failures.append(f"memory: {megabytes:.0f} MB by {what}")


def progress(outcomes: Sequence[Outcome]) -> str:
    """The sums in one line."""
    inputs = sum(outcome.inputs for outcome in outcomes)
    return f"{inputs} inputs, " + ", ".join(f"{_total(outcomes, what)} {what}" for what in COUNTS)


def table(outcomes: Sequence[Outcome]) -> str:
    """The sums as a Markdown table, one row per part and one for all."""
    head = ["part", "cases", "inputs", *COUNTS, "peak MB", "seconds"]
    parts = sorted({outcome.part for outcome in outcomes})
    rows = [_row(part, [each for each in outcomes if each.part == part]) for part in parts]
    rows.append(_row("all", outcomes))
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    rule = "|" + "|".join(f" {'-' * (width - 1)}: " for width in widths) + "|"
    return "\n".join([_line(head, widths), rule, *(_line(row, widths) for row in rows)])


def _total(outcomes: Sequence[Outcome], what: str) -> int:
    return sum(outcome.counts.get(what, 0) for outcome in outcomes)


def _row(name: str, outcomes: Sequence[Outcome]) -> list[str]:
    counts = [_total(outcomes, what) for what in COUNTS]
    peak = max((outcome.peak_mb for outcome in outcomes), default=0.0)
    numbers = [len(outcomes), sum(outcome.inputs for outcome in outcomes), *counts, round(peak)]
    return [name, *map(str, numbers), f"{sum(outcome.seconds for outcome in outcomes):.0f}"]


def _line(cells: list[str], widths: list[int]) -> str:
    return "| " + " | ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)) + " |"
