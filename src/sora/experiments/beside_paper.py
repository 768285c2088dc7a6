"""Our results beside the paper's: cells, differences, the order of the rows, and which rows collapsed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sora.experiments.paper import Deviation, Value

PENDING = "-"
# A row has collapsed if its PGD-10 accuracy is under a quarter of its FGSM accuracy, or, in a table
# without FGSM, under a quarter of the best row's.
LOST = 4


@dataclass(frozen=True)
class Cell:
    """One value of ours, the paper's, or both."""

    values: tuple[float | None, ...] = ()
    """Ours, one per seed; None where it is missing."""
    paper: Value | None = None
    text: str | None = None
    """Ours where it is no number."""

    @property
    def known(self) -> list[float]:
        """The values that are not missing."""
        return [value for value in self.values if value is not None]

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
    def difference(self) -> float | None:
        """Ours less the paper's."""
        theirs = self.paper.mean if self.paper else None
        return None if self.mean is None or theirs is None else self.mean - theirs

    def ours(self, kind: Deviation = "population") -> str:
        """Ours as printed, with one kind of deviation."""
        if self.text is not None or self.mean is None:
            return self.text or PENDING
        deviation = self.population_std if kind == "population" else self.sample_std
        known, seeds = len(self.known), len(self.values)
        some = f" ({known} of {seeds} seeds)" if known < seeds else ""
        return f"{self.mean:.2f}" + ("" if deviation is None else f" ± {deviation:.2f}") + some

    def theirs(self, source: str = "paper") -> str:
        """The paper's as printed there."""
        if self.paper is None:
            return f"not in the {source}"
        return self.paper.text if self.paper.std is None else f"{self.paper.text} ± {self.paper.std:.2f}"

    def record(self, *, comparable: bool) -> dict[str, Any]:
        """Everything about the cell, for files; a difference only where it means something."""
        ours = {
            "mean": self.mean,
            "population_std": self.population_std,
            "sample_std": self.sample_std,
            "values": list(self.values),
            "text": self.text,
        }
        return {
            "ours": ours,
            "paper": None if self.paper is None else self.paper._asdict(),
            "difference": self.difference if comparable else None,
        }


@dataclass(frozen=True)
class Table:
    """A table of the paper with our results in it."""

    name: str
    title: str
    header: tuple[str, ...]
    """What was computed and what the paper's numbers are of."""
    metrics: tuple[str, ...]
    cells: Mapping[str, Mapping[str, Cell]]
    comparable: bool
    """Whether ours and the paper's are the same experiment, so that differences mean something."""
    source: str = "paper"
    """What the numbers beside ours are from: the paper or the benchmark."""
    deviation: Deviation = "population"
    """The kind that those numbers have, and ours in print."""
    labels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    """For programs: what the header says."""
    failed: Mapping[str, str] = field(default_factory=dict)

    def order(self) -> dict[str, dict[str, float | int | None]]:
        """Rank correlation between our rows and the paper's, by metric, where both have at least two."""
        pairs = {metric: self._pairs(metric) for metric in self.metrics}
        return {metric: correlation(found) for metric, found in pairs.items() if len(found) > 1}

    def _pairs(self, metric: str) -> list[tuple[float, float]]:
        cells = [row[metric] for row in self.cells.values() if metric in row]
        pairs = [(cell.mean, cell.paper.mean if cell.paper else None) for cell in cells]
        return [(ours, theirs) for ours, theirs in pairs if ours is not None and theirs is not None]

    def collapsed(self) -> dict[str, Any]:
        """The rows that lost their robustness, in ours and in the paper, among those that both have.

        A row of ours is named if any of its seeds did; `ours_seeds` says how many of how many.
        """
        theirs = {row: _means_in_paper(cells) for row, cells in self.cells.items()}
        both = [row for row, cells in self.cells.items() if _seeds(cells) and "pgd10" in theirs[row]]
        counts = dict.fromkeys(both, 0)
        for seed in range(max((len(self.cells[row]["pgd10"].values) for row in both), default=0)):
            values = {row: _of_seed(self.cells[row], seed) for row in both}
            for row in fallen({row: own for row, own in values.items() if "pgd10" in own}):
                counts[row] += 1
        return {
            "ours": [row for row, count in counts.items() if count],
            "ours_seeds": {row: [count, _seeds(self.cells[row])] for row, count in counts.items() if count},
            "paper": fallen({row: theirs[row] for row in both}),
            "rows": both,
        }

    def record(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        return {
            "table": self.name,
            "title": self.title,
            "source": self.source,
            "labels": list(self.labels),
            "header": list(self.header),
            **self.facts,
            "comparable": self.comparable,
            "rows": {
                row: {metric: cell.record(comparable=self.comparable) for metric, cell in cells.items()}
                for row, cells in self.cells.items()
            },
            "order": self.order(),
            "collapsed": self.collapsed(),
            "notes": list(self.notes),
            "failed": dict(self.failed),
        }


def _seeds(cells: Mapping[str, Cell]) -> int:
    """How many seeds of a row have a PGD-10 accuracy."""
    return len(cells["pgd10"].known) if "pgd10" in cells else 0


def _of_seed(cells: Mapping[str, Cell], seed: int) -> dict[str, float]:
    values = {metric: cell.values[seed] for metric, cell in cells.items() if seed < len(cell.values)}
    return {metric: value for metric, value in values.items() if value is not None}


def _means_in_paper(cells: Mapping[str, Cell]) -> dict[str, float]:
    means = {metric: cell.paper.mean for metric, cell in cells.items() if cell.paper}
    return {metric: mean for metric, mean in means.items() if mean is not None}


def fallen(rows: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Rows whose PGD-10 accuracy is below a quarter of their FGSM accuracy; without it, of the best PGD-10.

    The same rule for ours and the paper's, on what the table shows. A network trained without attacks has no
    robustness to lose.
    """
    best = max((values["pgd10"] for values in rows.values()), default=0.0)
    return [
        row
        for row, values in rows.items()
        if row != "benign" and values["pgd10"] < values.get("fgsm", best) / LOST
    ]


def cells_of(
    rows: Sequence[str],
    metrics: Sequence[str],
    values: Mapping[str, Mapping[str, Sequence[float | None]]],
    numbers: Mapping[str, Mapping[str, Value]],
) -> dict[str, dict[str, Cell]]:
    """A cell for every row and metric."""
    return {
        row: {
            metric: Cell(tuple(values.get(row, {}).get(metric, ())), numbers.get(row, {}).get(metric))
            for metric in metrics
        }
        for row in rows
    }


def correlation(pairs: Sequence[tuple[float, float]]) -> dict[str, float | int | None]:
    """Spearman's and Kendall's (tau-b) rank correlation; None where all values of a side are equal."""
    from scipy import stats  # comes with scikit-learn; slow to import

    n = len(pairs)
    ours, theirs = ([pair[side] for pair in pairs] for side in (0, 1))
    if n < 2 or len(set(ours)) == 1 or len(set(theirs)) == 1:
        return {"spearman": None, "kendall": None, "n": n}
    spearman = float(stats.spearmanr(ours, theirs).statistic)
    kendall = float(stats.kendalltau(ours, theirs).statistic)
    return {
        "spearman": None if math.isnan(spearman) else spearman,
        "kendall": None if math.isnan(kendall) else kendall,
        "n": n,
    }
