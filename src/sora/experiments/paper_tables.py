"""From a table of the paper to our results in it, for every kind of table."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from sora import methods
from sora._devices import pick_device
from sora.errors import RunError, UserError
from sora.experiments.beside_paper import Table
from sora.experiments.cost import DatasetSize, bench_of, dataset_size, known_size
from sora.experiments.engines import Engine
from sora.experiments.paper import Value
from sora.experiments.reproduce import (
    MAIN,
    SCALED,
    TableRuns,
    Target,
    collect,
    compute,
    gaps,
    scaled_down,
)
from sora.experiments.tables import Cell
from sora.methods import cost_table
from sora.runs import RunFolder
from sora.runs.facts import machine, machine_line
from sora.settings import Resolved, differences

BATCH = 8  # images of the measured batch: memory and passes are per batch, so few are enough
REFERENCE = "fgsm"

Numbers = Mapping[str, Mapping[str, Value]]


def reproduce(target: Target, jobs: int = 0, *, quiet: bool = False, engine: Engine | None = None) -> Table:
    """Compute what is missing and make the table."""
    numbers, *paper_has = target.numbers()
    kind = target.grid.kind
    if kind == "overview":
        return _overview(target, numbers)
    if kind == "cost":
        return _cost(target, numbers)
    check_folders(target)
    if kind == "derived":  # gaps between runs that exist; nothing is trained for them
        runs = collect(target, target.runs())
        runs = runs._replace(values=gaps(runs.values))
    else:
        runs = compute(target, jobs, quiet=quiet, engine=engine)
    return _with_runs(target, runs, numbers, (paper_has[0], paper_has[1]))


def check_folders(target: Target) -> None:
    """Raise, before anything is computed, if a run folder cannot be read; the error says what to do."""
    for resolved in target.runs():
        folder = RunFolder(resolved.settings.folder())
        try:
            if folder.exists():
                folder.read_config()
                folder.read_summary()
                folder.read_evaluations()
                check = _refuse_another_experiment if target.grid.kind == "derived" else _refuse_other_attacks
                check(folder, resolved)
            elif folder.path.exists() and any(folder.path.iterdir()):
                raise RunError(f"{folder.path} is not a run folder: it has files but no config.yaml")
        except (RunError, OSError) as error:
            raise RunError(f"{error}; delete {folder.path} and repeat the command") from None


def _refuse_other_attacks(folder: RunFolder, resolved: Resolved) -> None:
    """Raise if a finished run has other attacks; `sora evaluate` adds those that are missing."""
    changed = differences(folder.read_config(), resolved.settings)
    if folder.is_finished() and len(changed) == 1 and changed[0].startswith("attacks "):
        raise UserError(
            f"the run in {folder.path} was evaluated with other attacks: {changed[0]}; repeat --attacks "
            f"as it was, and add others by `sora evaluate {folder.path} --attacks NAME`"
        )


def _refuse_another_experiment(folder: RunFolder, resolved: Resolved) -> None:
    """Raise if a run has another data set, model or method; its size and its attacks may differ."""
    free = ("attacks", "data_dir", *SCALED)
    changed = differences(folder.read_config(), resolved.settings)
    other = [text for text in changed if text.split()[0] not in free]
    if other:
        raise UserError(
            f"the run in {folder.path} has other settings: {'; '.join(other)}; repeat the flags of "
            f"`sora reproduce {MAIN}`, or choose another --out"
        )


def _without_runs(target: Target, cells: Mapping[str, Mapping[str, Cell]], header: Sequence[str]) -> Table:
    grid, metrics = target.grid, tuple(next(iter(cells.values())))
    return Table(
        grid.name,
        grid.title,
        (*header, f"paper: {', '.join(grid.labels)}"),
        metrics,
        cells,
        comparable=False,
        source=grid.source,
        deviation=grid.deviation,
        labels=grid.labels,
        notes=grid.notes,
    )


def _with_runs(target: Target, runs: TableRuns, numbers: Numbers, paper_has: tuple[str, str]) -> Table:
    grid, metrics = target.grid, _metrics(target, runs)
    cells: dict[str, dict[str, Cell]] = {}
    for row in (variant.name for variant in target.variants()):
        values, theirs = runs.values.get(row, {}), numbers.get(row, {})
        cells[row] = {name: Cell(tuple(values.get(name, ())), theirs.get(name)) for name in metrics}
    smaller = scaled_down(target, runs.settings)
    same = paper_has == (target.dataset_name, target.model_name)
    labels = tuple(
        dict.fromkeys(cell.paper.label for row in cells.values() for cell in row.values() if cell.paper)
    )
    return Table(
        grid.name,
        grid.title,
        tuple(_header(target, smaller, paper_has, labels, runs)),
        tuple(metrics),
        cells,
        comparable=same and not smaller,
        source=grid.source,
        deviation=grid.deviation,
        labels=labels,
        notes=grid.notes,
        facts=_facts(target, smaller, paper_has),
        failed=runs.failed,
    )


def _metrics(target: Target, runs: TableRuns) -> list[str]:
    """Return the table's own columns, and what else was evaluated."""
    if target.grid.kind == "evaluation":
        wanted = [f"{attack}@{radius}" for attack in target.attack_names for radius in target.grid.radii]
    elif target.grid.kind == "derived":
        wanted = [name for attack in target.attack_names for name in (attack, f"{attack}-gap")]
    else:
        wanted = target.attack_names
    found = [metric for values in runs.values.values() for metric in values]
    extra = [] if target.grid.kind == "derived" else found  # main's other attacks have no gap in the paper
    return list(dict.fromkeys([*wanted, *extra]))


def _header(
    target: Target,
    smaller: Mapping[str, tuple[Any, Any]],
    paper_has: tuple[str, str],
    labels: Sequence[str],
    runs: TableRuns,
) -> list[str]:
    ours = f"{target.dataset_name}, {target.model_name}"
    measured = [values for row in runs.values.values() for values in row.values()]
    count = max((sum(value is not None for value in values) for values in measured), default=0)
    seeds = f"{count} seed{'s' if count != 1 else ''}"
    lines = [f"ours: {ours}, {seeds}, {_protocol(runs, smaller)}"]
    if smaller:
        texts = [
            f"{_title(key)} {here} (full: {_full(key, there)})" for key, (here, there) in smaller.items()
        ]
        lines.append(f"scaled down: {', '.join(texts)}")
    chosen, everything = len(target.variants()), len(target.grid.rows)
    if chosen < everything:
        lines.append(f"{chosen} of the table's {everything} rows")
    left_out = [name for name in target.grid.attacks if name not in target.attack_names]
    if left_out:
        lines.append(f"attacks left out: {', '.join(left_out)}")
    theirs, other = ", ".join(filter(None, paper_has)), paper_has != (target.dataset_name, target.model_name)
    source = target.grid.source
    reason = f" (the {source} has no {ours})" if other else ""
    lines.append(f"{source}: {theirs}{reason}; {', '.join(labels) or 'no values for this pair'}")
    if smaller or other:
        lines.append("not the same experiment: compare the order of the rows, not the values")
    if target.grid.kind == "derived" and not runs.values:
        lines.append(
            f"no finished runs in {target.folder}; `sora reproduce {MAIN} --dataset {target.dataset_name}` "
            "computes them"
        )
    return lines


def _protocol(runs: TableRuns, smaller: Mapping[str, tuple[Any, Any]]) -> str:
    """Say which images are trained on and which weights are tested."""
    if any(settings.keep != "last" for settings in runs.settings.values()):
        return "weights chosen on held-out training images"
    images = "no images held out" if "limit_train" in smaller else "all training images"
    return f"{images}, last weights"


def _title(key: str) -> str:
    names = {"limit_train": "training images", "limit_test": "test images", "batch_size": "batch size"}
    return names.get(key, key)


def _full(key: str, value: Any) -> str:
    unset = "the model's own" if key == "width" else "all"
    return unset if value is None else str(value)


def _facts(
    target: Target, smaller: Mapping[str, tuple[Any, Any]], paper_has: tuple[str, str]
) -> dict[str, Any]:
    return {
        "dataset": target.dataset_name,
        "model": target.model_name,
        "seeds": target.seeds,
        "scaled_down": {key: {"here": here, "full": there} for key, (here, there) in smaller.items()},
        "paper_dataset": paper_has[0],
        "paper_model": paper_has[1],
    }


def _overview(target: Target, numbers: Numbers) -> Table:
    """Show the data sets as they are on this machine."""
    cells: dict[str, dict[str, Cell]] = {}
    for row in target.grid.rows:
        theirs, ours = numbers.get(row, {}), dict.fromkeys(DatasetSize._fields, "not here")
        with contextlib.suppress(UserError, RunError):
            size = dataset_size(row, target.given.get("data_dir"))
            ours = {key: str(value) for key, value in size._asdict().items()}
            ours["shape"] = "x".join(map(str, size.shape))
        cells[row] = {key: Cell(paper=theirs.get(key), text=ours[key]) for key in DatasetSize._fields}
    return _without_runs(
        target, cells, ["ours: the data sets on this machine; `sora data get NAME` fetches one"]
    )


def _cost(target: Target, numbers: Numbers) -> Table:
    """Measure passes and memory of one batch with each method; memory in multiples of FGSM's."""
    given, width = str(target.given.get("device") or "auto"), target.scale.get("width")
    device = "cpu" if given == "auto" else str(pick_device(given))
    rows = {variant.name: str(variant.method) for variant in target.variants()}
    size = known_size(target.dataset_name, target.given.get("data_dir"))
    names = [REFERENCE, *rows.values()]  # the reference may not be a row of the table
    bench = bench_of(target.model_name, size, width=width)
    measured = cost_table(names, device=device, batch_size=BATCH, rounds=1, bench=bench)
    lines = {line["name"]: line for line in measured}
    cells: dict[str, dict[str, Cell]] = {}
    for name, method in rows.items():
        line, theirs = lines[method], numbers.get(name, {})
        ratio = line["peak_bytes"] / lines[REFERENCE]["peak_bytes"]
        ours = {
            "type": _type_of(method),
            "forwards": f"{line['forwards']:g}",
            "backwards": f"{line['backwards']:g}",
            "memory": f"{ratio:.2f} x, {line['peak_bytes'] / BATCH / 2**20:.1f} MB/image",
        }
        cells[name] = {key: Cell(paper=theirs.get(key), text=text) for key, text in ours.items()}
    header = (
        f"measured on {target.model_name} at the shape of {target.dataset_name}, "
        f"one batch of {BATCH} images, {machine_line(machine(device))}; "
        "memory: tensors alive at once, in multiples of FGSM's; passes in batches"
    )
    return _without_runs(target, cells, [header, *([f"scaled down: width {width}"] if width else [])])


def _type_of(method: str) -> str:
    """Return how a method crafts its examples, in the paper's words."""
    entry = methods.info(method)
    if entry.group == "ordinary training":
        return "Standard"
    if "replays" in {field.name for field in dataclasses.fields(entry.cls.hyper_class)}:
        return "Single-Step (Replay)"
    return "Multi-Step" if entry.group == "several steps" else "Single-Step"
