"""The cells and formats that all tables share: one value per seed, its mean and deviation, text, CSV."""

import csv
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sora.experiments.paper import Deviation, Value

PENDING = "-"


@dataclass(frozen=True)
class Cell:
    """One value of ours, the paper's, or both."""

    values: tuple[float | None, ...] = ()  # ours, one per seed; None where it is missing
    paper: Value | None = None
    text: str | None = None  # ours where it is not a number

    @property
    def known(self) -> list[float]:
        """The values that are not missing."""
        return [value for value in self.values if value is not None]

    def of(self, seed: int) -> float | None:
        """Return the value of a seed, counted from 0."""
        return self.values[seed] if seed < len(self.values) else None

    @property
    def mean(self) -> float | None:
        """Mean over the seeds."""
        return statistics.fmean(self.known) if self.known else None

    @property
    def population_std(self) -> float | None:
        """The deviation that the paper reports: of these seeds, divided by their number."""
        return statistics.pstdev(self.known) if len(self.known) > 1 else None

    @property
    def sample_std(self) -> float | None:
        """The estimate for all seeds, divided by their number less one."""
        return statistics.stdev(self.known) if len(self.known) > 1 else None

    @property
    def paper_mean(self) -> float | None:
        """The paper's mean."""
        return self.paper.mean if self.paper else None

    @property
    def difference(self) -> float | None:
        """Ours less the paper's."""
        return None if self.mean is None or self.paper_mean is None else self.mean - self.paper_mean

    def ours(self, kind: Deviation = "sample", factor: float = 1, digits: int = 2) -> str:
        """Return `mean ± deviation`, with the number of seeds where some are missing; `-` without a value."""
        if self.text is not None or self.mean is None:
            return self.text or PENDING
        deviation = self.population_std if kind == "population" else self.sample_std
        known, seeds = len(self.known), len(self.values)
        text = f"{factor * self.mean:.{digits}f}"
        text += "" if deviation is None else f" ± {factor * deviation:.{digits}f}"
        return text if known == seeds else f"{text} ({known} of {seeds} seeds)"

    def theirs(self, source: str = "paper") -> str:
        """Return the paper's value as printed there."""
        if self.paper is None:
            return f"not in the {source}"
        return self.paper.text if self.paper.std is None else f"{self.paper.text} ± {self.paper.std:.2f}"

    def summary(self) -> dict[str, Any]:
        """Return mean, sample deviation and all values, for the files of a comparison."""
        mean, std = (math.nan if number is None else number for number in (self.mean, self.sample_std))
        return {"mean": mean, "std": std, "values": list(self.values)}

    def record(self, *, comparable: bool) -> dict[str, Any]:
        """Return everything about the cell, for files; a difference only where it means something."""
        ours = {key: getattr(self, key) for key in ("mean", "population_std", "sample_std")}
        ours |= {"values": list(self.values), "text": self.text}
        return {
            "ours": ours,
            "paper": None if self.paper is None else self.paper._asdict(),
            "difference": self.difference if comparable else None,
        }


def cells_of(runs: Sequence[Mapping[str, float | None]]) -> dict[str, Cell]:
    """Return a cell for every metric that the runs of a row have, one run per seed."""
    metrics = dict.fromkeys(metric for run in runs for metric in run)
    return {metric: Cell(tuple(run.get(metric) for run in runs)) for metric in metrics}


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [[" ".join(cell.split()).replace("|", "\\|") for cell in line] for line in (head, *rows)]
    text = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([text[0], f"|{'---|' * len(head)}", *text[1:]])


def csv_text(lines: Sequence[Sequence[Any]]) -> str:
    """Return lines as CSV; None and NaN are empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for line in lines:
        writer.writerow(["" if isinstance(cell, float) and math.isnan(cell) else cell for cell in line])
    return text.getvalue()
