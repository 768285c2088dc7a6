"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

WIDE = 160
VERDICT_STYLE = {
    "robust": "green",
    "healthy": "green",  # up to version 0.1.0
    "not robust": "yellow",
    "suspect": "yellow",
    "overfitted": "red",
}


def print_summary(summary: Mapping[str, Any], folder: Path) -> None:
    """What came out of one run."""
    table = Table(title=f"{summary['method']} on {summary['dataset']}, seed {summary['seed']}")
    for column in ("attack", "accuracy", "95 % interval", "n"):
        table.add_column(column, justify="left" if column == "attack" else "right")
    for name, value in summary["accuracy"].items():
        found = summary["attacks"][name]
        interval = f"{100 * found['low']:.1f} - {100 * found['high']:.1f} %"
        table.add_row(name, f"{100 * value:.1f} %", interval, str(found["n"]))
    console = Console()
    console.print(table)
    from sora.threat import eps_text  # not above: `sora data --help` should not wait for torch

    threat, co = summary["threat"], summary["co"]
    verdict = Text(co["verdict"] or "no verdict", VERDICT_STYLE.get(co["verdict"] or "", ""))
    alarm = f"first alarm at step {co['events'][0]['step']}" if co["events"] else "no alarm"
    radius = f"{threat['norm']} eps {eps_text(threat['eps'])}"
    console.print(Text.assemble(f"{radius}; ", verdict, f", {alarm}; {folder}"), highlight=False)


def plain_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Print a table."""
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=index == 0)
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    console = Console()
    if not console.is_terminal:  # a file or a pipe has no width to keep to
        console = Console(width=WIDE)
    console.print(table)
