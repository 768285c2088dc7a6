"""Several methods on the same data and seeds, and the one table that says how they did."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sora import methods
from sora._files import write_json, write_text
from sora.threat import eps_text

SEVERITY = ("overfitted", "suspect", "healthy")


def read_summaries(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """The summaries of the runs that finished."""
    paths = [folder / "summary.json" for folder in folders]
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def compare(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Group runs by method: means and deviations over seeds, verdicts, cost."""
    by_method: dict[str, list[Mapping[str, Any]]] = {}
    for summary in summaries:
        by_method.setdefault(summary["method"], []).append(summary)
    first = summaries[0]
    return {
        "dataset": first["dataset"],
        "model": first["model"],
        "threat": first["threat"],
        "n_test": max(found["n"] for found in first["attacks"].values()),
        "versions": first["versions"],
        "methods": {name: _aggregate(name, runs) for name, runs in by_method.items()},
    }


def _aggregate(name: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    verdicts = [run["co"]["verdict"] for run in runs]
    info = methods.info(name)
    return {
        "seeds": [run["seed"] for run in runs],
        "epochs": runs[0]["epochs"],
        "accuracy": {key: mean_std([run["accuracy"][key] for run in runs]) for key in runs[0]["accuracy"]},
        "verdict": min(verdicts, key=lambda word: SEVERITY.index(word) if word in SEVERITY else 99),
        "verdicts": verdicts,
        "pert_align": mean_std([run["pert_align"]["last"] for run in runs]),
        "alarms": [run["co"]["events"][0]["step"] if run["co"]["events"] else None for run in runs],
        "forwards": info.forwards,
        "backwards": info.backwards,
        "train_seconds": mean_std([run["train_seconds"] for run in runs]),
        "images_per_second": mean_std([run["images_per_second"] for run in runs]),
    }


def mean_std(values: Sequence[float | None]) -> dict[str, float]:
    """Mean and sample deviation of the values that exist."""
    real = [value for value in values if value is not None]
    if not real:
        return {"mean": math.nan, "std": math.nan}
    return {"mean": statistics.fmean(real), "std": statistics.stdev(real) if len(real) > 1 else math.nan}


def table(comparison: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Column heads and rows, as text."""
    found = comparison["methods"]
    attacks = list(next(iter(found.values()))["accuracy"])
    head = ["method", *(f"{name} %" for name in attacks), "verdict", "PertAlign", "alarm at step"]
    head += ["forwards", "train s"]
    rows = []
    for name, entry in found.items():
        numbers = [plus_minus(entry["accuracy"][attack], 100, 1) for attack in attacks]
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


def _verdicts(verdicts: Sequence[str]) -> str:
    counts = Counter(verdicts)
    if len(counts) == 1:
        return verdicts[0]
    return ", ".join(f"{counts[word]} {word}" for word in SEVERITY if counts[word])


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
    return (
        f"{comparison['dataset']}, {comparison['model']}, {threat['norm']} eps {eps_text(threat['eps'])}, "
        f"n = {comparison['n_test']} test images, {seeds} seed{'s' if seeds > 1 else ''}"
        f"{' (mean ± standard deviation)' if seeds > 1 else ''}; "
        f"torch {comparison['versions']['torch']}, {comparison['versions']['machine']}."
    )


def write(comparison: Mapping[str, Any], folder: Path) -> None:
    """`comparison.json`, `comparison.csv`, and the table as text in `comparison.md`."""
    write_json(folder / "comparison.json", comparison)
    write_text(folder / "comparison.md", markdown(comparison))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    attacks = list(next(iter(comparison["methods"].values()))["accuracy"])
    writer.writerow(
        ["method", *(f"{a}_{k}" for a in attacks for k in ("mean", "std")), "verdict", "train_seconds"]
    )
    for name, entry in comparison["methods"].items():
        numbers = [entry["accuracy"][attack][key] for attack in attacks for key in ("mean", "std")]
        cells = ["" if math.isnan(number) else number for number in numbers]
        writer.writerow([name, *cells, entry["verdict"], entry["train_seconds"]["mean"]])
    write_text(folder / "comparison.csv", text.getvalue())
