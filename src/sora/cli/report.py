"""`sora report`: one page about runs and comparisons, as an HTML file that opens without a network."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sora.cli._parse import flag, parse


@dataclass(frozen=True)
class Flags:
    """Write one page about runs and comparisons: verdicts, accuracies, curves, cost and settings.

    The page shows what is in the run folders and computes nothing; it names the commands that make what is
    missing.
    """

    runs: Sequence[str] = flag(
        (),
        "run folders, or folders of runs such as those of comparisons",
        metavar="RUN [RUN ...]",
        positional=True,
    )
    out: str = flag("report.html", "the page")
    title: str = flag("", "heading of the page")
    quiet: bool = flag(False, "do not list what is missing")


def run(argv: list[str]) -> int:
    """Write the page and say what it does not show."""
    from sora.report import write_page

    flags = parse(Flags, argv, "report")
    out = Path(flags.out)
    missing = write_page(flags.runs, out, flags.title)
    print(f"{out} ({out.stat().st_size / 1e6:.1f} MB)")
    if missing and not flags.quiet:
        count = "1 thing is" if len(missing) == 1 else f"{len(missing)} things are"
        print(f"sora: {count} not shown; the page says which commands make them", file=sys.stderr)
    return 0
