"""The paper's experiments as grids of runs, and every value of its tables; the public benchmark likewise.

`grids/NAME.yaml` says which runs a table consists of, `numbers.csv` what the paper prints for them, one value
per line under the table's label. A value that the paper leaves out has no line. `fastat.csv` has the values
of the public benchmark in the same form; what is said of the paper below holds for it in its own grid.
"""

import csv
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal, NamedTuple

import msgspec
import yaml

from sora.errors import unknown
from sora.experiments.variants import Variant

FOLDER = resources.files("sora.experiments.paper")
FILES = ("numbers.csv", "fastat.csv")
Deviation = Literal["population", "sample"]
Kind = Literal["runs", "evaluation", "derived", "cost", "overview"]
"""Runs; runs attacked at several radii; made from another grid's runs; passes and memory; data sets."""


@dataclass(frozen=True)
class Grid:
    """One kind of table: which runs it consists of."""

    name: str
    title: str
    labels: tuple[str, ...]  # the paper's tables that it reproduces
    kind: Kind
    datasets: tuple[str, ...]  # the paper's data sets, the default first; empty where the rows name them
    models: tuple[str, ...]
    attacks: tuple[str, ...]
    settings: Mapping[str, Any]  # common to all rows
    rows: Mapping[str, Variant]  # without a method in the overview of data sets, where nothing is trained
    notes: tuple[str, ...] = ()  # footnotes: where the paper contradicts itself or leaves something open
    radii: tuple[str, ...] = ()  # of attacks, for the kind `evaluation`: its metrics are e.g. `fgsm@3/255`
    source: str = "paper"  # what its numbers are from: the paper or the benchmark
    deviation: Deviation = "population"  # which deviation over the seeds its numbers have
    recipe: str | None = None  # it decides which images are held out and which weights are tested


class Value(NamedTuple):
    """What the paper prints in one cell."""

    mean: float | None  # None where the paper prints no number, e.g. `m` passes; see `text`.
    std: float | None  # over the seeds; None where the paper gives none
    label: str  # the table's label in the paper
    text: str  # the mean as printed


def names() -> list[str]:
    """Return the names of the grids, alphabetically."""
    files = (FOLDER / "grids").iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


@cache
def load(name: str) -> Grid:
    """Read a grid by its name."""
    if name not in names():
        raise unknown("table", name, names())
    content = yaml.safe_load((FOLDER / "grids" / f"{name}.yaml").read_text(encoding="utf-8"))
    datasets, models = (
        [own] if isinstance(own := content.get(key, []), str) else own for key in ("dataset", "model")
    )
    attacks = content["attacks"].split(",") if content.get("attacks") else []
    rows = {key: {"name": key, "values": values} for key, values in content["rows"].items()}
    lists = {"datasets": datasets, "models": models, "attacks": attacks}
    return msgspec.convert({**content, "name": name, "rows": rows, **lists}, Grid)


def numbers(grid: Grid, dataset: str | None = None, model: str | None = None) -> dict[str, dict[str, Value]]:
    """Return the paper's values by row and metric for a data set and model; none for a pair it lacks.

    By default they are those of the grid's first data set and model. Where two tables of the grid print the
    same cell, the first of `grid.labels` counts.
    """
    wanted = {"dataset": dataset or next(iter(grid.datasets), "")}
    wanted["model"] = model or next(iter(grid.models), "")
    values: dict[str, dict[str, Value]] = {}
    for line in _lines_of(grid):
        # An empty column: the value holds for all data sets, or for all models.
        if all(line[key] in ("", name) for key, name in wanted.items()):
            mean, std = None, float(line["std"]) if line["std"] else None
            with suppress(ValueError):
                mean = float(line["mean"])
            value = Value(mean, std, line["label"], line["mean"])
            values.setdefault(line["variant"], {}).setdefault(line["metric"], value)
    return values


def pairs(grid: Grid) -> list[tuple[str, str]]:
    """Return the pairs of data set and model for which the paper has values, in its order."""
    return list(dict.fromkeys((line["dataset"], line["model"]) for line in _lines_of(grid)))


def _lines_of(grid: Grid) -> list[dict[str, str]]:
    """Return the lines of the files that belong to a grid; of one that consists of runs, only its attacks."""
    lines = [line for label in grid.labels for line in _lines()[label]]
    return [line for line in lines if grid.kind != "runs" or line["metric"] in grid.attacks]


@cache
def _lines() -> dict[str, list[dict[str, str]]]:
    """Return the lines of the files by label, in their order."""
    lines: dict[str, list[dict[str, str]]] = {}
    for name in FILES:
        text = (FOLDER / name).read_text(encoding="utf-8")
        for line in csv.DictReader(text.splitlines()):
            lines.setdefault(line["label"], []).append(line)
    return lines
