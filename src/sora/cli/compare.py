"""`sora compare`: several methods, the same data and seeds, one table."""

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sora._files import create_folder
from sora.cli._flags import EngineFlags, SettingsFlags
from sora.cli._parse import changed, flag, parse_with_settings, print_json
from sora.cli._tables import plain_table
from sora.errors import RunError, UserError
from sora.experiments.compare import compare, protocol, table, train_and_compare, write
from sora.experiments.variants import of_methods, parse_variant, plan, read_grid

METHODS = "fgsm,n-fgsm,sora"  # compared if no row is named
OUT = "runs/compare"


@dataclass(frozen=True)
class RowFlags:
    """The flags that name the rows of the table."""

    runs: Sequence[str] = flag(
        (), "finished runs, or folders of runs, to compare instead", metavar="[RUN ...]", positional=True
    )
    methods: str | None = flag(None, f"methods to compare, separated by commas, or all (default: {METHODS})")
    variant: Sequence[str] = flag(
        (),
        "a row of its own, 'NAME: METHOD key=value ...', e.g. 'no-sampling: sora sora.sample=false "
        "batch_size=64'; keys are settings, METHOD.option or model.option; may be repeated",
    )
    grid: str | None = flag(None, "YAML file with rows: {NAME: {method: ..., set: {...}, ...}}")
    seeds: int = flag(1, "seeds per row: seed, seed+1, ...")


@dataclass(frozen=True)
class Flags(SettingsFlags, EngineFlags, RowFlags):
    """Train several methods or named variants.

    `sora compare RUN RUN ...` makes the table of finished runs instead; a folder of runs stands for the runs
    in it. A setting that is not given comes from --config, else from the recipe, else it has the default
    shown here; --dry-run prints every value with its origin.
    """


def run(argv: list[str]) -> int:
    """Train the grid, or take finished runs; print and write the table."""
    out = f"folder of the runs; default: {OUT}"
    flags, given = parse_with_settings(Flags, argv, "compare", ("method", "variant"), out=out)
    if flags.runs:
        return _compare_finished(flags, given)
    request, named = flags.request(given), flags.variant or flags.grid
    methods = flags.methods if flags.methods is not None or named else METHODS
    variants = [*(of_methods(methods) if methods is not None else ()), *map(parse_variant, flags.variant)]
    if flags.grid is not None:
        given, rows = read_grid(flags.grid, given)
        request, variants = dataclasses.replace(request, given=given), [*variants, *rows]
    folder = Path(request.wanted().get("out") or OUT)
    runs = plan(request, variants, flags.seeds, folder)
    if flags.dry_run:
        files = flags.batch_files(runs)
        if flags.json:
            records = [{"folder": str(each.settings.folder()), **each.record()} for each in runs]
            print_json({"runs": records, "batch_files": files})
        else:
            described = [f"# {each.settings.folder()}\n{each.described()}" for each in runs]
            print(*described, *files, sep="\n")
        return 0
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; choose another --out")
    if folder.exists() and any(folder.iterdir()) and not flags.resuming():
        raise UserError(f"{folder} already holds runs; continue with --resume or choose another --out")
    with flags.chosen_engine() as engine:
        comparison, failed = train_and_compare(runs, folder, flags.jobs, flags.quiet, engine)
    show(comparison, folder, as_json=flags.json)
    return report_failures(failed, len(runs), folder)


def _compare_finished(flags: Flags, given: dict[str, Any]) -> int:
    """Print, and write if asked, the table of runs that exist."""
    own = [field.name for field in dataclasses.fields(flags) if field.name not in ("runs", "json")]
    settings = [f"--{name.replace('_', '-')}" for name in given if name != "out"]
    for name in [*changed(flags, *own), *settings]:
        raise UserError(f"{name} has no effect on finished runs; only --out and --json do")
    comparison = compare(*flags.runs)
    if given.get("out"):
        create_folder(Path(given["out"]))
        write(comparison, Path(given["out"]))
    show(comparison, None, as_json=flags.json)
    return 0


def show(comparison: dict[str, Any], folder: Path | None, *, as_json: bool) -> None:
    """Print a comparison as JSON, or as a table with its protocol and the files in `folder` under it."""
    if as_json:
        print_json(comparison)
        return
    plain_table("", *table(comparison))
    print(protocol(comparison))
    if folder is not None:
        print(f"{folder}/comparison.json, .csv, .md")


def report_failures(failed: Mapping[str, str], count: int, folder: Path) -> int:
    """Name the runs that failed; 0 if there are none."""
    for name, error in failed.items():
        print(f"sora: {name} failed: {error}", file=sys.stderr)
    if failed:
        raise RunError(f"{len(failed)} of {count} runs failed; the table holds the others: {folder}")
    return 0
