"""A comparison as a table: for the console, as Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sora._files import write_json, write_text
from sora.evaluation.result import VERDICTS
from sora.runs.provenance import machine_line
from sora.threat import eps_text

SEVERITY = (*VERDICTS, "healthy")  # the last up to version 0.1.0
NONE: Mapping[str, float] = {"mean": math.nan, "std": math.nan}


def table(comparison: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Column heads and rows, as text; a column for each fact in which the rows differ."""
    entries = comparison["methods"]
    attacks, facts = attacks_of(entries.values()), _different_facts(comparison)
    head = [_first_column(entries), *facts, *(f"{name} %" for name in attacks), "verdict", "PertAlign"]
    head += ["alarm at step", "forwards", "train s", "peak MB"]
    rows = []
    for name, entry in entries.items():
        alarms = [step for step in entry["alarms"] if step is not None]
        rows.append(
            [
                name,
                *(_fact(entry, fact) for fact in facts),
                *(plus_minus(entry["accuracy"].get(attack, NONE), 100, 1) for attack in attacks),
                verdicts_text(entry["verdicts"]),
                plus_minus(entry["pert_align"], 1, 2),
                ", ".join(map(str, alarms)) or "-",
                entry["forwards"],
                plus_minus(entry["train_seconds"], 1, 0),
                plus_minus(entry.get("peak_memory_mb", NONE), 1, 0),
            ]
        )
    return head, rows


def attacks_of(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    """All attacks that at least one of the entries was evaluated under."""
    return list(dict.fromkeys(name for entry in entries for name in entry["accuracy"]))


def _first_column(entries: Mapping[str, Any]) -> str:
    return "variant" if any(entry.get("variant") for entry in entries.values()) else "method"


def _different_facts(comparison: Mapping[str, Any]) -> list[str]:
    keys = {"dataset": "dataset", "model": "model", "threat": "eps", "n_test": "n"}
    return [title for key, title in keys.items() if comparison.get(key) is None]


def _fact(entry: Mapping[str, Any], title: str) -> str:
    if title == "eps":
        return radius(entry["threat"])
    return str(entry["n_test" if title == "n" else title])


def radius(threat: Mapping[str, Any]) -> str:
    """`8/255` for linf, `l2 0.5` for another norm."""
    text = eps_text(threat["eps"])
    return text if threat["norm"] == "linf" else f"{threat['norm']} {text}"


def verdicts_text(verdicts: Sequence[str | None]) -> str:
    """The runs' verdicts in a few words; `-` without FGSM and PGD-10, which a verdict needs."""
    counts = Counter(verdict for verdict in verdicts if verdict is not None)
    if len(counts) <= 1:
        return next(iter(counts), "-")
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in SEVERITY if counts[verdict])


def plus_minus(value: Mapping[str, Any], factor: float, digits: int) -> str:
    """`mean ± std`, only the mean of a single value, `-` for none; how many seeds it is of if not of all."""
    mean, std = value["mean"], value["std"]
    if mean is None or math.isnan(mean):
        return "-"
    text = f"{factor * mean:.{digits}f}"
    text = text if std is None or math.isnan(std) else f"{text} ± {factor * std:.{digits}f}"
    known, seeds = known_seeds(value), len(value.get("values", ()))
    return text if known == seeds else f"{text} ({known} of {seeds} seeds)"


def known_seeds(value: Mapping[str, Any]) -> int:
    """How many seeds a mean is of."""
    return sum(each is not None for each in value.get("values", ()))


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [[cell.replace("|", "\\|") for cell in line] for line in (head, *rows)]
    text = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([text[0], f"|{'---|' * len(head)}", *text[1:]])


def markdown(comparison: Mapping[str, Any]) -> str:
    """The table as Markdown, with the settings under it."""
    return f"{markdown_table(*table(comparison))}\n\n{protocol(comparison)}\n"


def protocol(comparison: Mapping[str, Any]) -> str:
    """What the numbers are, in one sentence; it states only what holds for every row."""
    counts = {len(entry["seeds"]) for entry in comparison["methods"].values()}
    threat, several = comparison["threat"], max(counts) > 1
    seeds = f"{min(counts)}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    facts, versions = comparison.get("machine"), comparison["versions"]
    machine = machine_line(facts) if facts else versions.get("machine")  # format 1 had it there
    code = versions.get("torch") and f"torch {versions['torch']}"
    parts = [
        comparison["dataset"],
        _network(comparison),
        threat and f"{threat['norm']} eps {eps_text(threat['eps'])}",
        comparison["n_test"] and f"n = {comparison['n_test']} test images",
        f"{seeds} seed{'s' if several else ''}{' (mean ± standard deviation)' if several else ''}",
    ]
    groups = [", ".join(filter(None, group)) for group in (parts, [code, machine])]
    return f"{'; '.join(filter(None, groups))}."


def _network(comparison: Mapping[str, Any]) -> str | None:
    """The network's name with its size, which its width and other options decide."""
    name, parameters = comparison["model"], comparison.get("parameters")
    return f"{name} ({parameters:,} parameters)" if name and parameters else name


def write(comparison: Mapping[str, Any], folder: Path) -> None:
    """`comparison.json`, `comparison.csv`, and the table as text in `comparison.md`."""
    write_json(folder / "comparison.json", comparison)
    write_text(folder / "comparison.md", markdown(comparison))
    write_text(folder / "comparison.csv", _csv(comparison))


def _csv(comparison: Mapping[str, Any]) -> str:
    entries = comparison["methods"]
    attacks = attacks_of(entries.values())
    first = _first_column(entries)
    head = [first, *(f"{attack}_{key}" for attack in attacks for key in ("mean", "std", "seeds"))]
    head += [
        "verdict",
        "pert_align",
        "alarm_steps",
        "forwards",
        "train_seconds",
        "peak_memory_mb",
        "seeds",
        "dataset",
        "model",
        "norm",
        "eps",
        "n",
    ]
    lines: list[list[Any]] = [head + (["method"] if first == "variant" else [])]
    for name, entry in entries.items():
        values = [entry["accuracy"].get(attack, NONE) for attack in attacks]
        numbers = [n for value in values for n in (value["mean"], value["std"], known_seeds(value))]
        alarms = " ".join(str(step) for step in entry["alarms"] if step is not None)
        line = [name, *map(_number, numbers), entry["verdict"]]
        line += [_number(entry["pert_align"]["mean"]), alarms, entry["forwards"]]
        line += [_number(entry[key]["mean"]) for key in ("train_seconds", "peak_memory_mb")]
        line += [" ".join(map(str, entry["seeds"])), entry["dataset"], entry["model"]]
        line += [entry["threat"]["norm"], entry["threat"]["eps"], entry["n_test"]]
        lines.append(line + ([entry["method"]] if first == "variant" else []))
    return csv_text(lines)


def csv_text(lines: Sequence[Sequence[Any]]) -> str:
    """Lines as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def _number(value: float) -> float | str:
    return "" if math.isnan(value) else value
