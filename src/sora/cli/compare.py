"""`sora compare`: several methods, the same data and seeds, one table."""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from sora._files import create_folder, plain
from sora.cli._engines import ENGINE_FLAGS, batch_files, chosen_engine
from sora.cli._parse import parse
from sora.cli._settings import Extra, parse_run_flags
from sora.cli._tables import plain_table
from sora.errors import RunError, UserError
from sora.experiments.compare import Comparison, compare_finished, protocol, table, train_and_compare, write
from sora.experiments.variants import Variant, of_methods, parse_variant, plan, read_grid
from sora.runs import find_runs

METHODS = "fgsm,n-fgsm,sora"  # compared if no row is named
OUT = "runs/compare"

EXTRA: Extra = {
    "methods": (str | None, None, f"methods to compare, separated by commas, or all (default: {METHODS})"),
    "variant": (
        tyro.conf.UseAppendAction[tuple[str, ...]],
        (),
        "a row of its own, 'NAME: METHOD key=value ...', e.g. 'no-sampling: sora sora.sample=false "
        "batch_size=64'; keys are settings, METHOD.option or model.option; may be repeated",
    ),
    "grid": (str | None, None, "YAML file with rows: {NAME: {method: ..., set: {...}, ...}}"),
    "seeds": (int, 1, "seeds per row: seed, seed+1, ..."),
    **ENGINE_FLAGS,
}


def run(argv: list[str]) -> int:
    """Train the grid, or take finished runs; print and write the table."""
    if _names_runs(argv):
        return compare_runs(argv)
    about = (
        "Train several methods or named variants. `sora compare RUN RUN ...` makes the table of finished "
        "runs instead; a folder of runs stands for the runs in it."
    )
    flags = parse_run_flags(
        argv,
        "compare RUN [RUN ...] | sora compare",
        about,
        EXTRA,
        without=("method", "variant"),
        texts={"out": f"folder of the runs; default: {OUT}"},
    )
    request, variants = flags.request(), _variants(flags.verb)
    if flags.verb.grid is not None:
        grid = read_grid(flags.verb.grid)
        request = dataclasses.replace(request, given=grid.with_flags(request.given))
        variants = [*variants, *grid.variants]
    folder = Path(request.wanted().get("out") or OUT)
    runs = plan(request, variants, flags.verb.seeds, folder)
    if flags.verb.dry_run:
        files = batch_files(flags.verb, runs)
        if flags.verb.json:
            records = [{"folder": str(each.settings.folder()), **each.record()} for each in runs]
            print(json.dumps(plain({"runs": records, "batch_files": files}), indent=2))
            return 0
        for resolved in runs:
            print(f"# {resolved.settings.folder()}\n{resolved.described()}")
        for text in files:
            print(text)
        return 0
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; choose another --out")
    if folder.exists() and any(folder.iterdir()) and not flags.resume:
        raise UserError(f"{folder} already holds runs; continue with --resume or choose another --out")
    with chosen_engine(flags.verb) as engine:
        outcome = train_and_compare(runs, folder, flags.verb.jobs, flags.verb.quiet, engine)
    show(outcome, folder, as_json=flags.verb.json)
    return report_failures(outcome, len(runs), folder)


def _names_runs(argv: list[str]) -> bool:
    """Whether a run is the first argument, apart from the flags that finished runs have."""
    rest = list(argv)
    while rest and (rest[0] == "--json" or rest[0].partition("=")[0] == "--out"):
        del rest[: 2 if rest[0] == "--out" else 1]
    return bool(rest) and not rest[0].startswith("-")


def _variants(verb: Any) -> list[Variant]:
    """The rows that the command line names; the default methods if it names none."""
    named = bool(verb.variant or verb.grid)
    methods = verb.methods if verb.methods is not None or named else METHODS
    rows = of_methods(methods) if methods is not None else []
    return [*rows, *map(parse_variant, verb.variant)]


@dataclass(frozen=True)
class FinishedFlags:
    """One table of finished runs, from their summaries."""

    runs: Annotated[
        tyro.conf.Positional[tuple[str, ...]],
        tyro.conf.arg(metavar="RUN [RUN ...]", help="run folders, or folders that contain runs"),
    ]
    out: Annotated[
        str | None, tyro.conf.arg(help="folder for comparison.json, .csv, .md; default: only print")
    ] = None
    json: Annotated[bool, tyro.conf.arg(help="print as JSON")] = False


def compare_runs(argv: list[str]) -> int:
    """Print, and write if asked, the table of runs that exist."""
    flags = parse(FinishedFlags, argv, "compare")
    comparison = compare_finished(find_runs(flags.runs))
    if flags.out:
        create_folder(Path(flags.out))
        write(comparison, Path(flags.out))
    if flags.json:
        print(json.dumps(plain(comparison), indent=2))
    else:
        plain_table("", *table(comparison))
        print(protocol(comparison))
    return 0


def show(outcome: Comparison, folder: Path, *, as_json: bool) -> None:
    """Print the comparison as JSON, or as a table with its protocol under it."""
    comparison = outcome.table
    if as_json:
        print(json.dumps(plain(comparison), indent=2))
        return
    plain_table("", *table(comparison))
    print(f"{protocol(comparison)}\n{folder}/comparison.json, .csv, .md")


def report_failures(outcome: Comparison, count: int, folder: Path) -> int:
    """Name the runs that failed; 0 if there are none."""
    for name, error in outcome.failed.items():
        print(f"sora: {name} failed: {error}", file=sys.stderr)
    if outcome.failed:
        raise RunError(f"{len(outcome.failed)} of {count} runs failed; the table holds the others: {folder}")
    return 0
