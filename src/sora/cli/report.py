"""`sora report`: one page about runs and comparisons, as an HTML file that opens without a network."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from sora.cli._parse import parse
from sora.errors import UserError


@dataclass(frozen=True)
class Flags:
    """Write one page about runs and comparisons: verdicts, accuracies, curves, cost and settings.

    The page shows what is in the run folders and computes nothing; it names the commands that make what is
    missing.
    """

    runs: Annotated[
        tyro.conf.Positional[tuple[str, ...]],
        tyro.conf.arg(
            metavar="RUN [RUN ...]", help="run folders, or folders of runs such as those of comparisons"
        ),
    ]
    out: Annotated[str, tyro.conf.arg(help="the page")] = "report.html"
    title: Annotated[str, tyro.conf.arg(help="heading of the page")] = ""
    quiet: Annotated[bool, tyro.conf.arg(help="do not list what is missing")] = False


def run(argv: list[str]) -> int:
    """Write the page and say what it does not show."""
    from sora.report import write_page

    flags = parse(Flags, argv, "report")
    if not flags.runs:
        raise UserError("name at least one run folder or folder of runs")
    out = Path(flags.out)
    missing = write_page(flags.runs, out, flags.title)
    print(f"{out} ({out.stat().st_size / 1e6:.1f} MB)")
    if missing and not flags.quiet:
        count = "1 thing is" if len(missing) == 1 else f"{len(missing)} things are"
        print(f"sora: {count} not shown; the page says which commands make them", file=sys.stderr)
    return 0
