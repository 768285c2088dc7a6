"""Several methods on the same data and seeds, and the one table that says how they did."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sora import methods
from sora._devices import check_count
from sora._files import write_json, write_text
from sora.errors import RunError, UserError
from sora.evaluation.records import with_later_results
from sora.experiments.grid import default_jobs, run_grid
from sora.runs import RunFolder, labels
from sora.runs.provenance import machine_line
from sora.settings import Resolved
from sora.threat import eps_text

SEVERITY = ("overfitted", "suspect", "healthy")


def train_and_compare(runs: Sequence[Resolved], folder: Path, jobs: int = 0, quiet: bool = False) -> Outcome:
    """Compute the runs that are missing, then write and return the comparison of those that finished."""
    check_count("--jobs", jobs, 0)
    grid = run_grid(runs, jobs or default_jobs(len(runs), runs[0].settings.device), quiet=quiet)
    failed = {job.name: job.error for job in grid if job.error}
    summaries = [with_later_results(job.folder) for job in grid if job.folder.is_finished()]
    if not summaries:
        reasons = "; ".join(f"{name}: {error}" for name, error in failed.items())
        raise RunError(f"no run finished ({reasons})")
    comparison = compare(summaries)
    write(comparison, folder)
    return Outcome(comparison, failed)


class Outcome(NamedTuple):
    """A comparison, and the runs that failed and are not in it, with their errors."""

    comparison: dict[str, Any]
    failed: dict[str, str]


def compare_finished(folders: Sequence[RunFolder]) -> dict[str, Any]:
    """Finished runs side by side, a row each; they must have the same test set and threat."""
    summaries = {label: folder.read_summary() for label, folder in zip(labels(folders), folders, strict=True)}
    for label, folder in zip(summaries, folders, strict=True):
        folder.read_config()  # raises if this is not a run folder
        if not summaries[label]:
            raise UserError(f"the run in {folder.path} is not finished; continue it with --resume")
    (first, reference), *others = summaries.items()
    for label, summary in others:
        for key in ("dataset", "threat"):
            if summary[key] != reference[key]:
                raise UserError(
                    f"{first} and {label} cannot be compared: {key} {reference[key]} and {summary[key]}"
                )
    return compare(list(summaries.values()), [f"{label} ({row_name(s)})" for label, s in summaries.items()])


def compare(summaries: Sequence[Mapping[str, Any]], names: Sequence[str] | None = None) -> dict[str, Any]:
    """Group runs by their names in the table, by default the methods: means over seeds, verdicts, cost."""
    by_method: dict[str, list[Mapping[str, Any]]] = {}
    for name, summary in zip(names or map(row_name, summaries), summaries, strict=True):
        by_method.setdefault(name, []).append(summary)
    first = summaries[0]
    return {
        "dataset": first["dataset"],
        "model": first["model"],
        "threat": first["threat"],
        "n_test": max(attack["n"] for attack in first["attacks"].values()),
        "versions": first["versions"],
        "machine": first.get("machine"),
        "methods": {name: _aggregate(runs) for name, runs in by_method.items()},
    }


def row_name(summary: Mapping[str, Any]) -> str:
    """The method, and the guard's action if it may change training: `fgsm + rollback` is not plain `fgsm`."""
    guard = summary["co"].get("guard", "warn")  # version 0.1.0 did not store it
    return str(summary["method"]) if guard in ("off", "warn") else f"{summary['method']} + {guard}"


def _aggregate(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    verdicts = [run["co"]["verdict"] for run in runs]
    info = methods.info(runs[0]["method"])
    return {
        "seeds": [run["seed"] for run in runs],
        "epochs": runs[0]["epochs"],
        "accuracy": {key: mean_std([run["accuracy"].get(key) for run in runs]) for key in _attacks(runs)},
        "verdict": min(verdicts, key=lambda verdict: SEVERITY.index(verdict) if verdict in SEVERITY else 99),
        "verdicts": verdicts,
        "pert_align": mean_std([run["pert_align"]["last"] for run in runs]),
        "alarms": [run["co"]["events"][0]["step"] if run["co"]["events"] else None for run in runs],
        "forwards": info.forwards,
        "backwards": info.backwards,
        "train_seconds": mean_std([run["train_seconds"] for run in runs]),
        "images_per_second": mean_std([run["images_per_second"] for run in runs]),
    }


def _attacks(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    """All attacks that at least one of the entries was evaluated under."""
    return list(dict.fromkeys(name for entry in entries for name in entry["accuracy"]))


def mean_std(values: Sequence[float | None]) -> dict[str, float]:
    """Mean and sample deviation of the values that exist."""
    real = [value for value in values if value is not None]
    if not real:
        return {"mean": math.nan, "std": math.nan}
    return {"mean": statistics.fmean(real), "std": statistics.stdev(real) if len(real) > 1 else math.nan}


def table(comparison: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Column heads and rows, as text."""
    entries = comparison["methods"]
    attacks = _attacks(entries.values())
    head = ["method", *(f"{name} %" for name in attacks), "verdict", "PertAlign", "alarm at step"]
    head += ["forwards", "train s"]
    rows = []
    for name, entry in entries.items():
        numbers = [plus_minus(entry["accuracy"].get(attack, mean_std([])), 100, 1) for attack in attacks]
        alarms = [step for step in entry["alarms"] if step is not None]
        rows.append(
            [
                name,
                *numbers,
                _verdicts(entry["verdicts"]),
                plus_minus(entry["pert_align"], 1, 2),
                ", ".join(map(str, alarms)) or "-",
                entry["forwards"],
                plus_minus(entry["train_seconds"], 1, 0),
            ]
        )
    return head, rows


def _verdicts(verdicts: Sequence[str | None]) -> str:
    """The runs' verdicts in a few words; `-` without FGSM and PGD-10, which a verdict needs."""
    counts = Counter(verdict for verdict in verdicts if verdict is not None)
    if len(counts) <= 1:
        return next(iter(counts), "-")
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in SEVERITY if counts[verdict])


def plus_minus(value: Mapping[str, float], factor: float, digits: int) -> str:
    """`mean ± std`, only the mean of a single value, `-` for none."""
    mean, std = value["mean"], value["std"]
    if mean is None or math.isnan(mean):
        return "-"
    text = f"{factor * mean:.{digits}f}"
    return text if std is None or math.isnan(std) else f"{text} ± {factor * std:.{digits}f}"


def markdown(comparison: Mapping[str, Any]) -> str:
    """The table as Markdown, with the settings under it."""
    head, rows = table(comparison)
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([*lines, "", protocol(comparison)]) + "\n"


def protocol(comparison: Mapping[str, Any]) -> str:
    """What the numbers are, in one sentence."""
    entry = next(iter(comparison["methods"].values()))
    threat, seeds = comparison["threat"], len(entry["seeds"])
    # Format 1 had the machine among the versions.
    facts = comparison.get("machine")
    machine = machine_line(facts) if facts else comparison["versions"].get("machine", "machine not recorded")
    return (
        f"{comparison['dataset']}, {comparison['model']}, {threat['norm']} eps {eps_text(threat['eps'])}, "
        f"n = {comparison['n_test']} test images, {seeds} seed{'s' if seeds > 1 else ''}"
        f"{' (mean ± standard deviation)' if seeds > 1 else ''}; "
        f"torch {comparison['versions']['torch']}, {machine}."
    )


def write(comparison: Mapping[str, Any], folder: Path) -> None:
    """`comparison.json`, `comparison.csv`, and the table as text in `comparison.md`."""
    write_json(folder / "comparison.json", comparison)
    write_text(folder / "comparison.md", markdown(comparison))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    attacks = _attacks(comparison["methods"].values())
    writer.writerow(
        ["method", *(f"{a}_{k}" for a in attacks for k in ("mean", "std")), "verdict", "train_seconds"]
    )
    for name, entry in comparison["methods"].items():
        values = [entry["accuracy"].get(attack, mean_std([])) for attack in attacks]
        numbers = [value[key] for value in values for key in ("mean", "std")]
        cells = ["" if math.isnan(number) else number for number in numbers]
        writer.writerow([name, *cells, entry["verdict"], entry["train_seconds"]["mean"]])
    write_text(folder / "comparison.csv", text.getvalue())
