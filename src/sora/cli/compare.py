"""`sora compare`: several methods, the same data and seeds, one table."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from sora._files import plain
from sora.cli._settings import Extra, parse_run_flags
from sora.cli._tables import plain_table
from sora.errors import RunError, UserError
from sora.experiments.compare import Outcome, protocol, table, train_and_compare
from sora.experiments.plan import method_names, plan

EXTRA: Extra = {
    "methods": (str, "fgsm,n-fgsm,sora", "methods to compare, separated by commas, or all"),
    "seeds": (int, 1, "seeds per method: seed, seed+1, ..."),
    "jobs": (int, 0, "processes at once; 0: one per core"),
}


def run(argv: list[str]) -> int:
    """Train the grid, print and write the table."""
    flags = parse_run_flags(argv, "compare", "Train several methods.", EXTRA, without=("method",))
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
