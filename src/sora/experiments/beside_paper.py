"""Our results beside the paper's: differences, the order of the rows, which rows collapsed, and the files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sora._files import create_folder, write_json, write_text
from sora.experiments.paper import Grid
from sora.experiments.tables import Cell, csv_text, markdown_table

# A row has collapsed if its PGD-10 accuracy is under a quarter of its FGSM accuracy, or, in a table
# without FGSM, under a quarter of the best row's.
LOST = 4
_TITLES = {"clean": "clean", "fgsm": "FGSM", "pgd10": "PGD-10", "aa": "AA"}
_LATEX = str.maketrans(
    {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "±": r"$\pm$", "{": r"\{", "}": r"\}"}
    | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
)


@dataclass(frozen=True)
class Table:
    """A table of the paper with our results in it."""

    grid: Grid  # what it reproduces, and the source of the numbers beside ours
    cells: Mapping[str, Mapping[str, Cell]]  # by row and metric; all rows have the same metrics
    header: tuple[str, ...] = ()  # what was computed, and where the paper's numbers are from
    comparable: bool = False  # the same experiment as the paper's, so that differences mean something
    facts: Mapping[str, Any] = field(default_factory=dict)  # the header as keys and values, for programs
    failed: Mapping[str, str] = field(default_factory=dict)

    @property
    def metrics(self) -> list[str]:
        """The columns."""
        return list(next(iter(self.cells.values())))

    @property
    def labels(self) -> list[str]:
        """The paper's tables that its numbers are from."""
        cells = [cell for row in self.cells.values() for cell in row.values()]
        return list(dict.fromkeys(cell.paper.label for cell in cells if cell.paper))

    def order(self) -> dict[str, dict[str, float | int | None]]:
        """Return the rank correlation of our rows and the paper's, by metric, where both have two or more."""
        pairs = {metric: self._pairs(metric) for metric in self.metrics}
        return {metric: correlation(found) for metric, found in pairs.items() if len(found) > 1}

    def _pairs(self, metric: str) -> list[tuple[float, float]]:
        pairs = [(row[metric].mean, row[metric].paper_mean) for row in self.cells.values()]
        return [(ours, theirs) for ours, theirs in pairs if ours is not None and theirs is not None]

    def collapsed(self) -> dict[str, Any]:
        """Return the rows that lost their robustness, in ours and in the paper, among those that both have.

        A row of ours is named if any of its seeds did; `ours_seeds` says how many of how many.
        """
        rows = self.cells.items()
        theirs = {row: _known({key: cell.paper_mean for key, cell in cells.items()}) for row, cells in rows}
        seeds = {row: len(cells["pgd10"].known) for row, cells in rows if "pgd10" in cells}
        both = [row for row, count in seeds.items() if count and "pgd10" in theirs[row]]
        counts = dict.fromkeys(both, 0)
        for seed in range(max((len(self.cells[row]["pgd10"].values) for row in both), default=0)):
            values = {
                row: _known({key: cell.of(seed) for key, cell in self.cells[row].items()}) for row in both
            }
            for row in fallen({row: own for row, own in values.items() if "pgd10" in own}):
                counts[row] += 1
        return {
            "ours": [row for row, count in counts.items() if count],
            "ours_seeds": {row: [count, seeds[row]] for row, count in counts.items() if count},
            "paper": fallen({row: theirs[row] for row in both}),
            "rows": both,
        }

    def record(self) -> dict[str, Any]:
        """Return everything, for `--json`."""
        return {
            "table": self.grid.name,
            "title": self.grid.title,
            "source": self.grid.source,
            "labels": self.labels,
            "header": list(self.header),
            **self.facts,
            "comparable": self.comparable,
            "rows": {
                row: {metric: cell.record(comparable=self.comparable) for metric, cell in cells.items()}
                for row, cells in self.cells.items()
            },
            "order": self.order(),
            "collapsed": self.collapsed(),
            "notes": list(self.grid.notes),
            "failed": dict(self.failed),
        }


def _known(values: Mapping[str, float | None]) -> dict[str, float]:
    return {metric: value for metric, value in values.items() if value is not None}


def fallen(rows: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return the rows with PGD-10 accuracy below a quarter of their FGSM accuracy, or of the best PGD-10.

    The same rule for ours and the paper's, on what the table shows. A model trained without attacks has no
    robustness to lose.
    """
    best = max((values["pgd10"] for values in rows.values()), default=0.0)
    lost = (row for row, values in rows.items() if values["pgd10"] < values.get("fgsm", best) / LOST)
    return [row for row in lost if row != "benign"]


def correlation(pairs: Sequence[tuple[float, float]]) -> dict[str, float | int | None]:
    """Return Spearman's and Kendall's (tau-b) rank correlation; None where all values of a side are equal."""
    from scipy import stats  # comes with scikit-learn; slow to import

    ours, theirs = ([pair[side] for pair in pairs] for side in (0, 1))
    if len(set(ours)) < 2 or len(set(theirs)) < 2:
        return {"spearman": None, "kendall": None, "n": len(pairs)}
    spearman, kendall = (rank(ours, theirs).statistic for rank in (stats.spearmanr, stats.kendalltau))
    return {"spearman": float(spearman), "kendall": float(kendall), "n": len(pairs)}


def title_of(metric: str) -> str:
    """Return a metric as the head of a column: `PGD-10`, `FGSM at 3/255`, `clean, gap`."""
    metric, _, radius = metric.partition("@")
    name = metric.removesuffix("-gap")
    return _TITLES.get(name, name) + (f" at {radius}" if radius else "") + (", gap" if name != metric else "")


def grid_of(table: Table, metrics: Sequence[str] | None = None) -> tuple[list[str], list[list[str]]]:
    """Return column heads, and for each row a line for ours, the paper's and the difference."""
    shown, source = table.metrics if metrics is None else metrics, table.grid.source
    lines: list[list[str]] = []
    for row, cells in table.cells.items():
        chosen = [cells[metric] for metric in shown]
        lines.append([row, "ours", *(cell.ours(table.grid.deviation) for cell in chosen)])
        lines.append(["", source, *(cell.theirs(source) for cell in chosen)])
        differences = [cell.difference for cell in chosen]
        if table.comparable and any(each is not None for each in differences):
            lines.append(["", "diff.", *("" if each is None else f"{each:+.2f}" for each in differences)])
    return ["row", "", *map(title_of, shown)], lines


def footer(table: Table) -> list[str]:
    """Return what the table says as a whole: the order of its rows, which collapsed, and the notes."""
    source, collapsed = table.grid.source, table.collapsed()
    lines = []
    for metric, found in table.order().items():
        text = f"order by {title_of(metric)}: undefined, all rows are equal"
        if found["spearman"] is not None:
            correlations = f"Spearman {found['spearman']:+.2f}, Kendall {found['kendall']:+.2f}"
            text = f"order by {title_of(metric)}, ours against the {source}'s: {correlations}"
        lines.append(f"{text} (n = {found['n']})")
    if collapsed["rows"]:
        counts = collapsed["ours_seeds"].items()
        ours = ", ".join(row if n == of else f"{row} ({n} of {of} seeds)" for row, (n, of) in counts)
        lines.append(
            "collapsed (PGD-10 below a quarter of FGSM, or of the best PGD-10; "
            f"n = {len(collapsed['rows'])}), in ours: {ours or 'none'}; "
            f"in the {source}: {', '.join(collapsed['paper']) or 'none'}"
        )
    if any(len(cell.known) > 1 for row in table.cells.values() for cell in row.values()):
        kind = f"± is the {table.grid.deviation} deviation over the seeds"
        lines.append(f"{kind}, as in the {source}; the files have both kinds")
    return [*lines, *(f"note: {note}" for note in table.grid.notes)]


def markdown(table: Table) -> str:
    """Return the table in Markdown."""
    header, notes = ([f"- {line}" for line in lines] for lines in (table.header, footer(table)))
    body = markdown_table(*grid_of(table))
    return "\n".join([f"# {table.grid.title}", "", *header, "", body, "", *notes, ""])


def latex(table: Table) -> str:
    """Return the table in LaTeX, with booktabs."""
    head, lines = grid_of(table)
    body: list[str] = []
    for line in (head, *lines):
        if line[0] and body:
            body.append(r"    \midrule")
        body.append(f"    {' & '.join(cell.translate(_LATEX) for cell in line)} \\\\")
    return "\n".join(
        [
            *(f"% {line}" for line in (*table.header, *footer(table))),
            r"\begin{table}",
            f"  \\caption{{{table.grid.title.translate(_LATEX)}}}",
            f"  \\label{{tab:ours-{table.grid.name}}}",
            f"  \\begin{{tabular}}{{ll{'r' * (len(head) - 2)}}}",
            r"    \toprule",
            *body,
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def csv_lines(table: Table) -> str:
    """Return the table as CSV, one line per cell."""
    head = ["row", "metric", "ours", "ours_population_std", "ours_sample_std", "seeds"]
    lines: list[list[Any]] = [[*head, "paper", "paper_std", "paper_label", "difference", "comparable"]]
    for row, cells in table.cells.items():
        for metric, cell in cells.items():
            ours = [cell.text if cell.mean is None else cell.mean, cell.population_std, cell.sample_std]
            theirs: list[Any] = [cell.theirs(table.grid.source), None, None]
            if cell.paper:
                theirs = [cell.paper.text, cell.paper.std, cell.paper.label]
            difference = cell.difference if table.comparable else None
            lines.append([row, metric, *ours, len(cell.known), *theirs, difference, table.comparable])
    return csv_text(lines)


def write(table: Table, folder: Path) -> None:
    """Write `TABLE.json`, `.csv`, `.md` and `.tex` into the folder of the runs."""
    create_folder(folder)
    write_json(folder / f"{table.grid.name}.json", table.record())
    for ending, text_of in {"csv": csv_lines, "md": markdown, "tex": latex}.items():
        write_text(folder / f"{table.grid.name}.{ending}", text_of(table))
