"""Tables of the paper that need no training: the cost of a batch with each method, and the data sets."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from sora import data, methods, models
from sora.errors import RunError, UserError
from sora.experiments import paper
from sora.experiments.beside_paper import Cell
from sora.experiments.paper import Value
from sora.experiments.reproduce import Target
from sora.methods import Bench, cost_table

BATCH = 8  # images of the measured batch: memory and passes are per batch, so few are enough
REFERENCE = "fgsm"


class Facts(NamedTuple):
    """The size of a data set."""

    shape: tuple[int, int, int]
    classes: int
    train: int
    test: int


def facts_of(dataset: str, data_dir: str | None = None) -> Facts:
    """From the images if they are here, else from the paper's overview."""
    try:
        return _facts_here(dataset, data_dir)
    except (UserError, RunError):
        known = paper.numbers(paper.load("datasets")).get(dataset)
        if known is None:
            raise
        return _from_paper(known)


def _facts_here(dataset: str, data_dir: str | None) -> Facts:
    found = data.load(dataset, data_dir)
    shape = (found.in_channels, *found.image_size)
    return Facts(shape, found.num_classes, len(found.train), len(found.test))


def _from_paper(values: Mapping[str, Value]) -> Facts:
    channels, height, width = (int(size) for size in values["shape"].text.split("x"))
    counts = (int(values[key].text) for key in ("classes", "train", "test"))
    return Facts((channels, height, width), *counts)


def overview(target: Target, numbers: Mapping[str, Mapping[str, Value]]) -> dict[str, dict[str, Cell]]:
    """The data sets as they are on this machine; those that are not here have no facts of ours."""
    cells: dict[str, dict[str, Cell]] = {}
    for row in target.grid.rows:
        theirs, ours = numbers.get(row, {}), dict.fromkeys(Facts._fields, "not here")
        with contextlib.suppress(UserError, RunError):
            facts = _facts_here(row, target.given.get("data_dir"))
            ours = {key: str(value) for key, value in facts._asdict().items()}
            ours["shape"] = "x".join(map(str, facts.shape))
        cells[row] = {key: Cell(paper=theirs.get(key), text=ours[key]) for key in Facts._fields}
    return cells


def cost(
    target: Target, numbers: Mapping[str, Mapping[str, Value]], device: str
) -> dict[str, dict[str, Cell]]:
    """Passes and memory of one batch with each method, measured here; memory in multiples of FGSM's."""
    rows = {variant.name: str(variant.method) for variant in target.variants()}
    facts = facts_of(target.dataset_name, target.given.get("data_dir"))
    bench = bench_of(target.model_name, facts, width=target.scale.get("width"))
    names = [REFERENCE, *rows.values()]  # the reference also where it is no row of the table
    measured = cost_table(names, device=device, batch_size=BATCH, rounds=1, bench=bench)
    table = {row["name"]: row for row in measured}
    reference = table[REFERENCE]["peak_bytes"]
    cells: dict[str, dict[str, Cell]] = {}
    for name, method in rows.items():
        line, theirs = table[method], numbers.get(name, {})
        megabytes = line["peak_bytes"] / BATCH / 2**20
        ours = {
            "type": type_of(method),
            "forwards": f"{line['forwards']:g}",
            "backwards": f"{line['backwards']:g}",
            "memory": f"{line['peak_bytes'] / reference:.2f} x, {megabytes:.1f} MB/image",
        }
        cells[name] = {key: Cell(paper=theirs.get(key), text=text) for key, text in ours.items()}
    return cells


def bench_of(
    model: str, facts: Facts, width: int | None = None, options: Mapping[str, Any] | None = None
) -> Bench:
    """A network at the shape of a data set."""
    channels, size, _ = facts.shape
    sizes = {"in_channels": channels, "image_size": size, "width": width, **(options or {})}
    return Bench(lambda: models.create(model, facts.classes, **sizes), facts.shape, facts.classes)


def type_of(method: str) -> str:
    """How a method crafts its examples, in the paper's words."""
    entry = methods.info(method)
    if entry.group == "ordinary training":
        return "Standard"
    if "replays" in {field.name for field in dataclasses.fields(entry.cls.hyper_class)}:
        return "Single-Step (Replay)"
    return "Multi-Step" if entry.group == "several steps" else "Single-Step"
