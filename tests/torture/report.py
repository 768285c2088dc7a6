"""What the bench counts, and the table it prints."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass, field

COUNTS = ("killed", "identical", "refused", "harmless", "different", "accepted", "raw", "executed", "hung")
MUST_BE_ZERO = ("different", "accepted", "raw", "executed", "hung")
MEMORY_LIMIT_MB = 1536
MEANING = {
    "killed": "processes ended by kill -9, SIGINT or SIGTERM",
    "identical": "results equal, byte for byte, to those of an undisturbed run",
    "refused": "one line that says what is wrong, exit code 1 or 2",
    "harmless": "hostile files that were read, or left alone, without any effect",
    "different": "results that changed, or a killed run that could not be continued",
    "accepted": "bad input that was taken, or that left files behind",
    "raw": "tracebacks and exceptions that are not meant for users",
    "executed": "code run, or files written, because a file asked for it",
    "hung": "no answer within the time limit, or processes left running",
}


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

    def saw_memory(self, megabytes: float, what: str) -> None:
        """Record a child's peak; above the limit it is a failure."""
        self.peak_mb = max(self.peak_mb, megabytes)
        if megabytes > MEMORY_LIMIT_MB:
            self.failures.append(f"memory: {megabytes:.0f} MB by {what}")

    def to_line(self) -> bytes:
        """One line of JSON."""
        return json.dumps(dataclasses.asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Outcome:
        """The reverse of `to_line`."""
        return cls(**json.loads(line))


class Report:
    """Sums over all cases."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    def add(self, outcome: Outcome) -> None:
        """Take in one case."""
        self.outcomes.append(outcome)

    @property
    def failed(self) -> bool:
        """Whether anything happened that must not."""
        return any(outcome.failures for outcome in self.outcomes)

    def total(self, what: str) -> int:
        """A count over all parts."""
        return sum(outcome.counts.get(what, 0) for outcome in self.outcomes)

    def progress(self) -> str:
        """The sums in one line."""
        inputs = sum(outcome.inputs for outcome in self.outcomes)
        return f"{inputs} inputs, " + ", ".join(f"{self.total(what)} {what}" for what in COUNTS)

    def table(self) -> str:
        """The sums as a Markdown table, one row per part and one for all."""
        parts = list(dict.fromkeys(outcome.part for outcome in self.outcomes))
        head = ["part", "cases", "inputs", *COUNTS, "peak MB", "seconds"]
        rows = [self._row(part, [o for o in self.outcomes if o.part == part]) for part in sorted(parts)]
        rows.append(self._row("all", self.outcomes))
        widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
        lines = [_line(head, widths), "|" + "|".join(f" {'-' * (w - 1)}: " for w in widths) + "|"]
        return "\n".join([*lines, *(_line(row, widths) for row in rows)])

    def _row(self, name: str, outcomes: Iterable[Outcome]) -> list[str]:
        chosen = list(outcomes)
        counts = [sum(outcome.counts.get(what, 0) for outcome in chosen) for what in COUNTS]
        peak = max((outcome.peak_mb for outcome in chosen), default=0.0)
        numbers = [len(chosen), sum(o.inputs for o in chosen), *counts, round(peak)]
        return [name, *map(str, numbers), f"{sum(outcome.seconds for outcome in chosen):.0f}"]


def _line(cells: list[str], widths: list[int]) -> str:
    return "| " + " | ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)) + " |"
