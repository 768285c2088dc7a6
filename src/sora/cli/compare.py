"""`sora compare`: several methods, the same data and seeds, one table."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from sora import methods
from sora.cli._tables import plain_table
from sora.cli.train import Extra, flags_of, peek, take_resume
from sora.errors import RunError, UserError
from sora.experiments import compare as comparing
from sora.experiments.grid import default_jobs, run_grid
from sora.training.config import TrainConfig, defaults, read_config_file, set_for

EXTRA: Extra = {
    "methods": (str, "fgsm,n-fgsm,sora", "methods to compare, separated by commas, or all"),
    "seeds": (int, 1, "seeds a method: seed, seed+1, ..."),
    "jobs": (int, 0, "processes at once; 0: one a core"),
}


def run(argv: list[str]) -> int:
    """Train the grid, print and write the table."""
    argv, resume = take_resume(argv)
    configs, flags = grid_of(argv)
    folder = Path(flags.out or "runs/compare")
    if folder.exists() and any(folder.iterdir()) and not resume:
        raise UserError(f"{folder} already holds runs; go on with --resume or choose another --out")
    if flags.dry_run:
        for config in configs:
            print(f"{config.folder()}")
        return 0
    comparison = train_and_compare(configs, folder, flags.jobs, flags.quiet)
    if flags.json:
        print(json.dumps(json.loads((folder / "comparison.json").read_text()), indent=2))
    else:
        show(comparison, folder)
    return 0


def show(comparison: dict[str, Any], folder: Path) -> None:
    """Print the table with its protocol under it."""
    plain_table("", *comparing.table(comparison))
    print(f"{comparing.protocol(comparison)}\n{folder}/comparison.json, .csv, .md")


def train_and_compare(configs: list[TrainConfig], folder: Path, jobs: int, quiet: bool) -> dict[str, Any]:
    """Compute what is missing, then aggregate; runs that failed are named and left out."""
    done = run_grid(configs, jobs or default_jobs(len(configs), configs[0].device), quiet=quiet)
    failed = [job for job in done if job.error]
    for job in failed:
        print(f"sora: {job.name} failed: {job.error}", file=sys.stderr)
    summaries = comparing.read_summaries([job.folder for job in done])
    if not summaries:
        raise RunError("no run finished; see the messages above")
    comparison = comparing.compare(summaries)
    comparing.write(comparison, folder)
    if failed:
        raise RunError(f"{len(failed)} of {len(done)} runs failed; the table holds the others: {folder}")
    return comparison


def grid_of(argv: list[str]) -> tuple[list[TrainConfig], Any]:
    """The settings of every run of the grid: each method gets its own part of the recipe."""
    seen = peek(argv)
    file = read_config_file(seen.config) if seen.config else {}
    dataset = seen.dataset or file.get("dataset", "digits")
    base = defaults(dataset, "benign", file, seen.model)
    flags, given, touched = flags_of(argv, "compare", base, EXTRA, without=("method",))
    names = methods.names(in_all=True) if flags.methods == "all" else flags.methods.split(",")
    families = {methods.info(name).family for name in names}
    stray = [key for key in given if key.split(".")[0] not in families | {"model"}]
    if stray:
        raise UserError(f"{stray[0]!r} belongs to none of the methods {', '.join(names)}")
    folder = Path(flags.out or "runs/compare")
    configs = []
    for name in names:
        table = defaults(dataset, name, file, seen.model) | touched
        table["set"] = table["set"] | set_for(given, name)
        for seed in range(flags.seed, flags.seed + flags.seeds):
            own = {"seed": seed, "out": str(folder / f"{name}-s{seed}")}
            configs.append(TrainConfig.build(_known(table) | own))
    return configs, flags


def _known(table: dict[str, Any]) -> dict[str, Any]:
    names = {field.name for field in dataclasses.fields(TrainConfig)}
    return {key: value for key, value in table.items() if key in names}
