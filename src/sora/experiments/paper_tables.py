"""From a table of the paper to our results in it, for every kind of table."""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from sora import methods
from sora._devices import pick_device
from sora.errors import RunError, UserError
from sora.experiments import paper
from sora.experiments.beside_paper import Table
from sora.experiments.cost import DatasetSize, bench_of, dataset_size, known_size
from sora.experiments.engines import Engine
from sora.experiments.paper import Value
from sora.experiments.reproduce import MAIN, SCALED, TableRuns, Target, collect, compute, gaps, scaled_down
from sora.experiments.tables import Cell
from sora.methods import cost_table
from sora.runs import RunFolder
from sora.runs.facts import machine, machine_line
from sora.settings import Resolved, differences

BATCH = 8  # images of the measured batch: memory and passes are per batch, so few are enough
REFERENCE = "fgsm"
TITLES = {"limit_train": "training images", "limit_test": "test images", "batch_size": "batch size"}

Numbers = Mapping[str, Mapping[str, Value]]
Smaller = Mapping[str, tuple[Any, Any]]  # settings that were scaled down: here, and at full size


def reproduce(target: Target, jobs: int = 0, *, quiet: bool = False, engine: Engine | None = None) -> Table:
    """Compute what is missing and make the table."""
    numbers, kind = paper.numbers(target.grid, *target.in_paper), target.grid.kind
    if kind == "overview":
        return _overview(target, numbers)
    if kind == "cost":
        return _cost(target, numbers)
    for resolved in target.runs():
        _check_folder(resolved, derived=kind == "derived")
    if kind == "derived":  # gaps between runs that exist; nothing is trained for them
        runs = collect(target, target.runs())
        return _with_runs(target, runs._replace(cells=gaps(runs.cells)), numbers)
    return _with_runs(target, compute(target, jobs, quiet=quiet, engine=engine), numbers)


def _check_folder(resolved: Resolved, *, derived: bool) -> None:
    """Raise if a run folder cannot be read or holds another run; the error says what to do."""
    folder = RunFolder(resolved.settings.folder())
    try:
        if folder.exists():
            changed = differences(folder.read_config(), resolved.settings)
            folder.read_summary()
            folder.read_evaluations()
            _refuse_another_run(folder, changed, derived)
        elif folder.path.exists() and any(folder.path.iterdir()):
            raise RunError(f"{folder.path} is not a run folder: it has files but no config.yaml")
    except (RunError, OSError) as error:
        raise RunError(f"{error}; delete {folder.path} and repeat the command") from None


def _refuse_another_run(folder: RunFolder, changed: Sequence[str], derived: bool) -> None:
    """Raise if a run has other settings; those of a derived table may differ in size and attacks."""
    free = ("attacks", "data_dir", *SCALED)
    other = [text for text in changed if text.split()[0] not in free]
    if derived and other:
        raise UserError(
            f"the run in {folder.path} has other settings: {'; '.join(other)}; repeat the flags of "
            f"`sora reproduce {MAIN}`, or choose another --out"
        )
    if not derived and folder.is_finished() and len(changed) == 1 and changed[0].startswith("attacks "):
        raise UserError(
            f"the run in {folder.path} was evaluated with other attacks: {changed[0]}; repeat --attacks "
            f"as it was, and add others by `sora evaluate {folder.path} --attacks NAME`"
        )


def _with_runs(target: Target, runs: TableRuns, numbers: Numbers) -> Table:
    cells: dict[str, dict[str, Cell]] = {}
    for row in (variant.name for variant in target.variants()):
        ours, theirs = runs.cells.get(row, {}), numbers.get(row, {})
        cells[row] = {
            metric: dataclasses.replace(ours.get(metric, Cell()), paper=theirs.get(metric))
            for metric in _metrics(target, runs)
        }
    smaller, (dataset, model) = scaled_down(target, runs.settings), target.in_paper
    facts = {
        "dataset": target.dataset_name,
        "model": target.model_name,
        "seeds": target.seeds,
        "scaled_down": {key: {"here": here, "full": there} for key, (here, there) in smaller.items()},
        "paper_dataset": dataset,
        "paper_model": model,
    }
    same = (dataset, model) == (target.dataset_name, target.model_name)
    table = Table(target.grid, cells, comparable=same and not smaller, facts=facts, failed=runs.failed)
    return dataclasses.replace(table, header=tuple(_header(target, runs, smaller, same, table.labels)))


def _metrics(target: Target, runs: TableRuns) -> list[str]:
    """Return the table's own columns, and what else was evaluated."""
    wanted = target.attack_names
    if target.grid.kind == "derived":  # the main table's other attacks have no gap in the paper
        return [name for attack in wanted for name in (attack, f"{attack}-gap")]
    if target.grid.kind == "evaluation":
        wanted = [f"{attack}@{radius}" for attack in wanted for radius in target.grid.radii]
    return list(dict.fromkeys([*wanted, *(metric for cells in runs.cells.values() for metric in cells)]))


def _header(
    target: Target, runs: TableRuns, smaller: Smaller, same: bool, labels: Sequence[str]
) -> list[str]:
    grid, ours = target.grid, f"{target.dataset_name}, {target.model_name}"
    count = max((len(cell.known) for cells in runs.cells.values() for cell in cells.values()), default=0)
    lines = [f"ours: {ours}, {count} seed{'s' if count != 1 else ''}, {_protocol(runs, smaller)}"]
    if smaller:
        full = {"width": "the model's own"}
        texts = [
            f"{TITLES.get(key, key)} {here} (full: {full.get(key, 'all') if there is None else there})"
            for key, (here, there) in smaller.items()
        ]
        lines.append(f"scaled down: {', '.join(texts)}")
    if len(target.variants()) < len(grid.rows):
        lines.append(f"{len(target.variants())} of the table's {len(grid.rows)} rows")
    left_out = [name for name in grid.attacks if name not in target.attack_names]
    if left_out:
        lines.append(f"attacks left out: {', '.join(left_out)}")
    theirs = ", ".join(filter(None, target.in_paper))
    reason = "" if same else f" (the {grid.source} has no {ours})"
    lines.append(f"{grid.source}: {theirs}{reason}; {', '.join(labels) or 'no values for this pair'}")
    if smaller or not same:
        lines.append("not the same experiment: compare the order of the rows, not the values")
    if grid.kind == "derived" and not any(runs.cells.values()):
        lines.append(
            f"no finished runs in {target.folder}; `sora reproduce {MAIN} --dataset {target.dataset_name}` "
            "computes them"
        )
    return lines


def _protocol(runs: TableRuns, smaller: Smaller) -> str:
    """Say which images are trained on and which weights are tested."""
    if any(settings.keep != "last" for settings in runs.settings.values()):
        return "weights chosen on held-out training images"
    images = "no images held out" if "limit_train" in smaller else "all training images"
    return f"{images}, last weights"


def _overview(target: Target, numbers: Numbers) -> Table:
    """Show the data sets as they are on this machine."""
    texts: dict[str, dict[str, str]] = {}
    for row in target.grid.rows:
        texts[row] = dict.fromkeys(DatasetSize._fields, "not here")
        with contextlib.suppress(UserError, RunError):
            size = dataset_size(row, target.given.get("data_dir"))
            texts[row] = {key: str(value) for key, value in size._asdict().items()}
            texts[row]["shape"] = "x".join(map(str, size.shape))
    header = "ours: the data sets on this machine; `sora data get NAME` fetches one"
    return _without_runs(target, texts, numbers, header)


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
    texts: dict[str, dict[str, str]] = {}
    for name, method in rows.items():
        passes = {key: f"{lines[method][key]:g}" for key in ("forwards", "backwards")}
        peak, reference = (lines[each]["peak_bytes"] for each in (method, REFERENCE))
        memory = f"{peak / reference:.2f} x, {peak / BATCH / 2**20:.1f} MB/image"
        texts[name] = {"type": _type_of(method), **passes, "memory": memory}
    header = (
        f"measured on {target.model_name} at the shape of {target.dataset_name}, "
        f"one batch of {BATCH} images, {machine_line(machine(device))}; "
        "memory: tensors alive at once, in multiples of FGSM's; passes in batches"
    )
    return _without_runs(target, texts, numbers, header, *([f"scaled down: width {width}"] if width else []))


def _without_runs(
    target: Target, texts: Mapping[str, Mapping[str, str]], numbers: Numbers, *header: str
) -> Table:
    cells = {
        row: {key: Cell(paper=numbers.get(row, {}).get(key), text=text) for key, text in own.items()}
        for row, own in texts.items()
    }
    return Table(target.grid, cells, (*header, f"paper: {', '.join(target.grid.labels)}"))


def _type_of(method: str) -> str:
    """Return how a method crafts its examples, in the paper's words."""
    entry = methods.info(method)
    if entry.group == "ordinary training":
        return "Standard"
    if "replays" in {field.name for field in dataclasses.fields(entry.cls.hyper_class)}:
        return "Single-Step (Replay)"
    return "Multi-Step" if entry.group == "several steps" else "Single-Step"
