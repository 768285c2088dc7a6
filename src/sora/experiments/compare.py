"""Several variants on the same seeds, or finished runs from anywhere: means over seeds, verdicts, cost."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sora.errors import RunError, UserError
from sora.evaluation.records import with_later_results
from sora.experiments.engines import Engine
from sora.experiments.grid import run_grid
from sora.experiments.passes import Passes, passes_of_run
from sora.experiments.tables import SEVERITY, attacks_of, write
from sora.experiments.variants import LONGEST
from sora.runs import RunFolder, unique_labels
from sora.runs.provenance import settings_hash
from sora.settings import Resolved

COMMON = ("dataset", "model", "threat")  # facts that a table states once if all its rows share them


class Outcome(NamedTuple):
    """A comparison, and the runs that failed and are not in it, with their errors."""

    comparison: dict[str, Any]
    failed: dict[str, str]


def train_and_compare(
    runs: Sequence[Resolved],
    folder: Path,
    jobs: int = 0,
    quiet: bool = False,
    engine: Engine | None = None,
) -> Outcome:
    """Compute the runs that are missing, then write and return the comparison of those that finished."""
    grid = run_grid(runs, jobs, quiet=quiet, engine=engine)
    failed = {job.name: job.error for job in grid if job.error}
    finished = [job for job in grid if job.folder.is_finished()]
    if not finished:
        reasons = "; ".join(f"{name}: {error}" for name, error in failed.items())
        raise RunError(f"no run finished ({reasons})")
    summaries = [with_later_results(job.folder) for job in finished]
    planned = [job.resolved.settings for job in finished]
    names = [_row_name(settings.variant, settings.method, settings.guard) for settings in planned]
    comparison = compare(summaries, names, [job.folder for job in finished])
    write(comparison, folder)
    return Outcome(comparison, failed)


def compare_finished(folders: Sequence[RunFolder]) -> dict[str, Any]:
    """Finished runs in one table; those of one variant with other seeds share a row."""
    summaries = [_finished_summary(folder) for folder in folders]
    return compare(summaries, row_names(folders, summaries), folders)


def _finished_summary(folder: RunFolder) -> dict[str, Any]:
    folder.read_config()  # raises if this is not a run folder
    if not folder.is_finished():
        raise UserError(
            f"the run in {folder.path} is not finished; continue it with --resume, or name the finished runs"
        )
    summary = with_later_results(folder)
    if not summary["attacks"]:
        raise UserError(
            f"the run in {folder.path} has no accuracies; `sora evaluate {folder.path}` adds them"
        )
    return summary


def row_names(folders: Sequence[RunFolder], summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """A row per variant; where two variants share a name, the folder's name is put in front."""
    keys = [variant_key(*pair) for pair in zip(folders, summaries, strict=True)]
    groups: dict[tuple[str, ...], list[int]] = {}
    for position, key in enumerate(keys):
        groups.setdefault(key, []).append(position)
    for positions in groups.values():
        _refuse_equal_seeds([(folders[p], summaries[p]["seed"]) for p in positions])
    shared, own_labels = Counter(key[0] for key in groups), unique_labels(folders)
    names: dict[tuple[str, ...], str] = {}
    for key, positions in groups.items():
        alone = len(positions) == 1
        label = own_labels[positions[0]] if alone else folders[positions[0]].path.resolve().parent.name
        name = key[0] if shared[key[0]] == 1 else f"{label} ({key[0]})"
        taken, number = set(names.values()), 1
        while (numbered := f"{name} #{number}" if number > 1 else name) in taken:
            number += 1
        names[key] = numbered
    return [names[key] for key in keys]


def variant_key(folder: RunFolder, summary: Mapping[str, Any]) -> tuple[str, ...]:
    """What runs of one row have in common: the name, and every setting but the seed, and the images."""
    settings = dataclasses.replace(folder.read_settings(), seed=0)
    images = (summary.get("data") or {}).get("fingerprint", "")
    return row_name(summary), settings_hash(settings), str(images)


def _refuse_equal_seeds(runs: Sequence[tuple[RunFolder, int]]) -> None:
    seen: dict[int, RunFolder] = {}
    for folder, seed in runs:
        if seed in seen:
            raise UserError(
                f"{seen[seed].path} and {folder.path} are the same run (settings and seed {seed}); "
                "leave one out"
            )
        seen[seed] = folder


def compare(
    summaries: Sequence[Mapping[str, Any]], names: Sequence[str], folders: Sequence[RunFolder]
) -> dict[str, Any]:
    """Group runs by their names in the table.

    Args:
        summaries: Of the runs, with later results.
        names: The row of each run.
        folders: Of the runs; their settings decide the passes of a step.
    """
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    passes: dict[str, Passes] = {}
    for name, summary, folder in zip(names, summaries, folders, strict=True):
        by_name.setdefault(name, []).append(summary)
        if name not in passes:
            passes[name] = passes_of_run(folder, summary)
    return {
        **{key: _common([summary[key] for summary in summaries]) for key in COMMON},
        "parameters": _common([summary.get("parameters") for summary in summaries]),
        "n_test": _common([_n_test(summary) for summary in summaries]),
        "versions": _shared([summary["versions"] for summary in summaries]),
        "machine": _common([summary.get("machine") for summary in summaries]),
        "methods": {name: _aggregate(runs, passes[name]) for name, runs in by_name.items()},
    }


def _common(values: Sequence[Any]) -> Any:
    """The value that all share; None if they differ."""
    return values[0] if all(value == values[0] for value in values) else None


def _shared(tables: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The entries that all tables have, with the same value."""
    return {key: value for key, value in tables[0].items() if all(own.get(key) == value for own in tables)}


def _n_test(summary: Mapping[str, Any]) -> int:
    return max(int(attack["n"]) for attack in summary["attacks"].values())


def row_name(summary: Mapping[str, Any]) -> str:
    """The variant if the run has one, else the method, with the guard's action if it may change training."""
    guard = summary["co"].get("guard", "warn")  # version 0.1.0 did not store it
    return _row_name(summary.get("variant"), str(summary["method"]), guard)


def _row_name(variant: object, method: str, guard: str) -> str:
    if variant:
        return " ".join(str(variant).split())[:LONGEST]  # it may come from a hostile file
    return method if guard in ("off", "warn") else f"{method} + {guard}"


def _aggregate(runs: Sequence[Mapping[str, Any]], passes: Passes) -> dict[str, Any]:
    verdicts = [run["co"]["verdict"] for run in runs]
    first = runs[0]
    return {
        "method": first["method"],
        "variant": first.get("variant"),
        **{key: first[key] for key in COMMON},
        "n_test": _n_test(first),
        "seeds": [run["seed"] for run in runs],
        "epochs": first["epochs"],
        "accuracy": {key: mean_std([run["accuracy"].get(key) for run in runs]) for key in attacks_of(runs)},
        "verdict": min(verdicts, key=lambda verdict: SEVERITY.index(verdict) if verdict in SEVERITY else 99),
        "verdicts": verdicts,
        "pert_align": mean_std([run["pert_align"]["last"] for run in runs]),
        "alarms": [run["co"]["events"][0]["step"] if run["co"]["events"] else None for run in runs],
        **passes._asdict(),
        "train_seconds": mean_std([run["train_seconds"] for run in runs]),
        "images_per_second": mean_std([run["images_per_second"] for run in runs]),
        "peak_memory_mb": mean_std([run.get("peak_memory_mb") for run in runs]),
    }


def mean_std(values: Sequence[float | None]) -> dict[str, Any]:
    """Mean and sample deviation of the values that exist, and all of them in the order of the seeds."""
    real = [value for value in values if value is not None]
    mean = statistics.fmean(real) if real else math.nan
    std = statistics.stdev(real) if len(real) > 1 else math.nan
    return {"mean": mean, "std": std, "values": list(values)}
