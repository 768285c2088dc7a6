"""Finished runs side by side: rows that are means over seeds, grouped by data set, network and threat."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sora.errors import UserError
from sora.experiments.compare import (
    attacks_of,
    compare,
    plus_minus,
    radius,
    row_names,
    variant_key,
    verdicts_text,
)
from sora.figures import PALETTE
from sora.report.reading import DAMAGE, Missing, RunRecord
from sora.report.sentences import TONES, title_of

FACTS = ("Data set", "Network", "eps", "Seeds", "n")  # columns that a table drops if all rows share them
STAR = "sora"  # the method that has a colour and a marker of its own in every figure


@dataclass(frozen=True)
class Row:
    """One variant under one setting: its means over seeds, and its runs."""

    name: str
    entry: Mapping[str, Any]
    runs: Sequence[RunRecord]


@dataclass(frozen=True)
class Setting:
    """What rows must share to be compared: data set, network and threat."""

    dataset: str
    model: str
    radius: str
    rows: Sequence[Row]

    @property
    def title(self) -> str:
        """In one line."""
        return f"{self.dataset}, {self.model}, eps {self.radius}"


def settings_of(runs: Sequence[RunRecord], missing: list[Missing]) -> list[Setting]:
    """The finished runs by setting; a group that cannot be compared is noted."""
    groups: dict[tuple[str, str, str], list[RunRecord]] = {}
    for run in runs:
        try:
            summary = run.summary
            if summary.get("attacks"):
                key = (str(summary["dataset"]), str(summary["model"]), radius(summary["threat"]))
                groups.setdefault(key, []).append(run)
        except DAMAGE as error:
            missing.append(Missing(f"{run.label} cannot be compared: {type(error).__name__}"))
    settings = []
    for key, members in groups.items():
        try:
            settings.append(Setting(*key, _rows(_without_copies(members, missing))))
        except DAMAGE as error:
            missing.append(Missing(f"{', '.join(key)} cannot be compared: {error}"))
    return settings


def _without_copies(runs: Sequence[RunRecord], missing: list[Missing]) -> list[RunRecord]:
    """The runs without those of the same settings and seed as an earlier one, which are noted."""
    found: dict[tuple[Any, ...], RunRecord] = {}
    for run in runs:
        try:
            key: tuple[Any, ...] = (*variant_key(run.folder, run.summary), run.summary["seed"])
        except DAMAGE:  # nothing is known to be equal to it
            key = (run.label,)
        first = found.setdefault(key, run)
        if first is not run:
            what = f"{run.label} has the settings and the seed of {first.label} and is not compared."
            missing.append(Missing(what))
    return list(found.values())


def _rows(runs: Sequence[RunRecord]) -> list[Row]:
    summaries = [run.summary for run in runs]
    try:
        names = row_names([run.folder for run in runs], summaries)
    except UserError:  # settings that cannot be read: each run is a row of its own
        names = [run.label for run in runs]
    entries = compare(summaries, names, [run.folder for run in runs])["methods"]
    own = {name: [run for run, of in zip(runs, names, strict=True) if of == name] for name in entries}
    return [Row(name, entry, own[name]) for name, entry in entries.items()]


def colours(settings: Sequence[Setting]) -> dict[str, str]:
    """A colour for each name of a row, the same in all figures."""
    names = dict.fromkeys(row.name for setting in settings for row in setting.rows)
    others = [name for name in names if name != STAR]
    cycle = {name: PALETTE[1 + number % (len(PALETTE) - 1)] for number, name in enumerate(others)}
    return {STAR: PALETTE[0], **cycle}


def robust_attack(settings: Sequence[Setting]) -> str:
    """The attack that stands for robust accuracy: PGD-10 if a row has it, else the last one."""
    names = attacks_of([row.entry for setting in settings for row in setting.rows])
    return "pgd10" if "pgd10" in names else names[-1]


def table(settings: Sequence[Setting]) -> dict[str, Any]:
    """Heads and cells, each with the value it is sorted by; what all rows share is said once, below."""
    attacks = attacks_of([row.entry for setting in settings for row in setting.rows])
    head = ["Method", "Data set", "Network", "eps", "Seeds", *(f"{title_of(name)} %" for name in attacks)]
    head += ["n", "Verdict", "PertAlign", "First alarm", "Forwards", "Train s", "Peak MB"]
    rows = [_cells(setting, row, attacks) for setting in settings for row in setting.rows]
    shared = {
        head[at]: rows[0][at]["text"] for at in range(1, len(head)) if head[at] in FACTS and _same(rows, at)
    }
    kept = [at for at, name in enumerate(head) if name not in shared]
    return {
        "head": [head[at] for at in kept],
        "rows": [[row[at] for at in kept] for row in rows],
        "shared": ", ".join(f"{name} {text}" for name, text in shared.items()),
    }


def _same(rows: Sequence[Sequence[Mapping[str, Any]]], at: int) -> bool:
    return len({row[at]["text"] for row in rows}) == 1


def _cells(setting: Setting, row: Row, attacks: Sequence[str]) -> list[dict[str, Any]]:
    entry = row.entry
    alarms = [step for step in entry["alarms"] if step is not None]
    none = {"mean": None, "std": None}
    return [
        _cell(row.name),
        _cell(setting.dataset),
        _cell(setting.model),
        _cell(setting.radius, entry["threat"]["eps"]),
        _cell(str(len(entry["seeds"])), len(entry["seeds"])),
        *(_mean(entry["accuracy"].get(attack, none), 100, 1) for attack in attacks),
        _cell(str(entry["n_test"]), entry["n_test"]),
        {**_cell(verdicts_text(entry["verdicts"])), "tone": TONES.get(entry["verdict"], "none")},
        _mean(entry["pert_align"], 1, 2),
        _cell(", ".join(map(str, alarms)) or "-", min(alarms, default=float("inf"))),
        _cell(str(entry["forwards"]), _leading_number(entry["forwards"])),
        _mean(entry["train_seconds"], 1, 0),
        _mean(entry["peak_memory_mb"], 1, 0),
    ]


def _cell(text: str, order: Any = None) -> dict[str, Any]:
    return {"text": text, "order": text.lower() if order is None else order, "number": order is not None}


def _mean(value: Mapping[str, Any], factor: float, digits: int) -> dict[str, Any]:
    mean = value["mean"]
    known = mean is not None and mean == mean
    return _cell(plus_minus(value, factor, digits), mean if known else -1.0)


def _leading_number(value: Any) -> float:
    """The number a text such as `2 + 1/q` begins with, to sort by; infinity if it begins with none."""
    found = re.match(r"\d+(\.\d+)?", str(value))
    return float(found[0]) if found else float("inf")
