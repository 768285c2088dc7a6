"""`sora compare`: several methods, the same data and seeds, one table."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from sora._files import create_folder, plain
from sora.cli._parse import parse
from sora.cli._settings import Extra, parse_run_flags
from sora.cli._tables import plain_table
from sora.errors import RunError, UserError
from sora.experiments.compare import Outcome, compare_finished, protocol, table, train_and_compare, write
from sora.experiments.plan import method_names, plan
from sora.runs import RunFolder

EXTRA: Extra = {
    "methods": (str, "fgsm,n-fgsm,sora", "methods to compare, separated by commas, or all"),
    "seeds": (int, 1, "seeds per method: seed, seed+1, ..."),
    "jobs": (int, 0, "processes at once; 0: one per core"),
}


def run(argv: list[str]) -> int:
    """Train the grid, or take finished runs; print and write the table."""
    if argv and not argv[0].startswith("-"):
        return compare_runs(argv)
    about = "Train several methods. `sora compare RUN RUN ...` makes the table of finished runs instead."
    flags = parse_run_flags(argv, "compare", about, EXTRA, without=("method",))
    request = flags.request()
    folder = Path(request.wanted().get("out") or "runs/compare")
    runs = plan(request, method_names(flags.verb.methods), flags.verb.seeds, folder)
    if flags.verb.dry_run:
        for resolved in runs:
            print(f"# {resolved.settings.folder()}\n{resolved.described()}")
        return 0
    if folder.exists() and any(folder.iterdir()) and not flags.resume:
        raise UserError(f"{folder} already holds runs; continue with --resume or choose another --out")
    outcome = train_and_compare(runs, folder, flags.verb.jobs, flags.verb.quiet)
    show(outcome, folder, as_json=flags.verb.json)
    return report_failures(outcome, len(runs), folder)


@dataclass(frozen=True)
class FinishedFlags:
    """One table of finished runs, from their summaries."""

    runs: Annotated[
        tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="RUN", help="run folders, one row each")
    ]
    out: Annotated[
        str | None, tyro.conf.arg(help="folder for comparison.json, .csv, .md; none: print only")
    ] = None
    json: Annotated[bool, tyro.conf.arg(help="print as JSON")] = False


def compare_runs(argv: list[str]) -> int:
    """Print, and write if asked, the table of runs that exist."""
    flags = parse(FinishedFlags, argv, "compare")
    comparison = compare_finished([RunFolder(run) for run in flags.runs])
    if flags.out:
        create_folder(Path(flags.out))
        write(comparison, Path(flags.out))
    if flags.json:
        print(json.dumps(plain(comparison), indent=2))
    else:
        plain_table("", *table(comparison))
        print(protocol(comparison))
    return 0


def show(outcome: Outcome, folder: Path, *, as_json: bool) -> None:
    """Print the comparison as JSON, or as a table with its protocol under it."""
    comparison: dict[str, Any] = outcome.comparison
    if as_json:
        print(json.dumps(plain(comparison), indent=2))
        return
    plain_table("", *table(comparison))
    print(f"{protocol(comparison)}\n{folder}/comparison.json, .csv, .md")


def report_failures(outcome: Outcome, count: int, folder: Path) -> int:
    """Name the runs that failed; 0 if there are none."""
    for name, error in outcome.failed.items():
        print(f"sora: {name} failed: {error}", file=sys.stderr)
    if outcome.failed:
        raise RunError(f"{len(outcome.failed)} of {count} runs failed; the table holds the others: {folder}")
    return 0
