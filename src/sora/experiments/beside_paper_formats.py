"""A table beside the paper's as text: lines for the console, Markdown, LaTeX, CSV and JSON files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sora._files import create_folder, write_json, write_text
from sora.experiments.beside_paper import Cell, Table
from sora.experiments.tables import csv_text, markdown_table

_TITLES = {"clean": "clean", "fgsm": "FGSM", "pgd10": "PGD-10", "aa": "AA"}
_LATEX = str.maketrans(
    {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "±": r"$\pm$", "{": r"\{", "}": r"\}"}
    | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
)


def title_of(metric: str) -> str:
    """A metric as the head of a column: `PGD-10`, `FGSM at 3/255`, `clean, gap`."""
    name, at, radius = metric.partition("@")
    gap = name.endswith("-gap")
    name = name.removesuffix("-gap")
    title = _TITLES.get(name, name)
    return title + (f" at {radius}" if at else "") + (", gap" if gap else "")


def grid_of(table: Table, metrics: Sequence[str] | None = None) -> tuple[list[str], list[list[str]]]:
    """Column heads, and under each row's name a line for ours, the paper's and the difference."""
    shown = list(table.metrics if metrics is None else metrics)
    lines: list[list[str]] = []
    for row, cells in table.cells.items():
        chosen = [cells[metric] for metric in shown]
        lines.append([row, "ours", *(cell.ours(table.deviation) for cell in chosen)])
        lines.append(["", table.source, *(cell.theirs(table.source) for cell in chosen)])
        if table.comparable and any(cell.difference is not None for cell in chosen):
            differences = [cell.difference for cell in chosen]
            lines.append(["", "diff.", *("" if d is None else f"{d:+.2f}" for d in differences)])
    return ["row", "", *map(title_of, shown)], lines


def footer(table: Table) -> list[str]:
    """What the table says as a whole: the order of its rows, which of them collapsed, and the notes."""
    source, deviation = table.source, table.deviation
    lines = [_order_line(title_of(metric), found, source) for metric, found in table.order().items()]
    collapsed = table.collapsed()
    if collapsed["rows"]:
        ours = ", ".join(_with_seeds(row, *counts) for row, counts in collapsed["ours_seeds"].items())
        lines.append(
            "collapsed (PGD-10 below a quarter of FGSM, or of the best PGD-10; "
            f"n = {len(collapsed['rows'])}), in ours: {ours or 'none'}; "
            f"in the {source}: {', '.join(collapsed['paper']) or 'none'}"
        )
    if any(len(cell.known) > 1 for row in table.cells.values() for cell in row.values()):
        lines.append(
            f"± is the {deviation} deviation over the seeds, as in the {source}; the files have both kinds"
        )
    return [*lines, *(f"note: {note}" for note in table.notes)]


def _with_seeds(row: str, fallen: int, seeds: int) -> str:
    return row if fallen == seeds else f"{row} ({fallen} of {seeds} seeds)"


def _order_line(title: str, found: Mapping[str, Any], source: str) -> str:
    if found["spearman"] is None:
        return f"order by {title}: undefined, all rows are equal (n = {found['n']})"
    correlations = f"Spearman {found['spearman']:+.2f}, Kendall {found['kendall']:+.2f}"
    return f"order by {title}, ours against the {source}'s: {correlations} (n = {found['n']})"


def markdown(table: Table) -> str:
    """The table for Markdown readers."""
    lines = [
        f"# {table.title}",
        "",
        *(f"- {line}" for line in table.header),
        "",
        markdown_table(*grid_of(table)),
        "",
    ]
    return "\n".join([*lines, *(f"- {line}" for line in footer(table))]) + "\n"


def latex(table: Table) -> str:
    """The table for LaTeX, with booktabs."""
    head, lines = grid_of(table)
    body: list[str] = []
    for line in lines:
        if line[0] and body:
            body.append(r"    \midrule")
        body.append(f"    {' & '.join(cell.translate(_LATEX) for cell in line)} \\\\")
    return "\n".join(
        [
            *(f"% {line}" for line in (*table.header, *footer(table))),
            r"\begin{table}",
            f"  \\caption{{{table.title.translate(_LATEX)}}}",
            f"  \\label{{tab:ours-{table.name}}}",
            f"  \\begin{{tabular}}{{ll{'r' * (len(head) - 2)}}}",
            r"    \toprule",
            f"    {' & '.join(cell.translate(_LATEX) for cell in head)} \\\\",
            r"    \midrule",
            *body,
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def csv_lines(table: Table) -> str:
    """One line per cell."""
    head = ["row", "metric", "ours", "ours_population_std", "ours_sample_std", "seeds"]
    lines: list[list[Any]] = [[*head, "paper", "paper_std", "paper_label", "difference", "comparable"]]
    for row, cells in table.cells.items():
        for metric, cell in cells.items():
            ours = [cell.text if cell.mean is None else cell.mean, cell.population_std, cell.sample_std]
            theirs = _csv_of_paper(cell, table.source)
            difference = cell.difference if table.comparable else None
            lines.append([row, metric, *ours, len(cell.known), *theirs, difference, table.comparable])
    return csv_text(lines)


def _csv_of_paper(cell: Cell, source: str) -> list[Any]:
    if cell.paper is None:
        return [cell.theirs(source), None, None]
    return [cell.paper.text, cell.paper.std, cell.paper.label]


def write(table: Table, folder: Path) -> None:
    """`TABLE.json`, `.csv`, `.md` and `.tex` in the folder of the runs."""
    create_folder(folder)
    write_json(folder / f"{table.name}.json", table.record())
    write_text(folder / f"{table.name}.csv", csv_lines(table))
    write_text(folder / f"{table.name}.md", markdown(table))
    write_text(folder / f"{table.name}.tex", latex(table))
