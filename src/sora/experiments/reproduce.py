"""A table of the paper, computed here: its runs, their results, and both beside the paper's numbers."""

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sora import data, methods, models
from sora._devices import pick_device
from sora.attacks import create_all
from sora.errors import RunError, UserError
from sora.evaluation import EvaluationOptions
from sora.evaluation.records import evaluate_into, with_later_results
from sora.evaluation.subject import subject_of_run
from sora.experiments import paper
from sora.experiments.beside_paper import Table
from sora.experiments.cost import DatasetSize, bench_of, dataset_size, known_size
from sora.experiments.engines import Engine
from sora.experiments.grid import run_grid
from sora.experiments.paper import Value
from sora.experiments.tables import Cell, cells_of
from sora.experiments.target import MAIN, SCALED, Target, row_of
from sora.methods import cost_table
from sora.runs import RunFolder
from sora.runs.facts import machine, machine_line
from sora.settings import Resolved, Settings, differences, is_custom, read_config_file

BATCH = 8  # images of the measured batch: memory and passes are per batch, so few are enough
REFERENCE = "fgsm"
TITLES = {"limit_train": "training images", "limit_test": "test images", "batch_size": "batch size"}

Cells = dict[str, dict[str, Cell]]  # by row and metric, in per cent
Numbers = Mapping[str, Mapping[str, Value]]
Smaller = Mapping[str, tuple[Any, Any]]  # settings that differ: here, and at full size


class TableRuns(NamedTuple):
    """The results of the runs of a table."""

    cells: Cells
    settings: dict[str, Settings]  # of the finished rows
    failed: dict[str, str]  # the error of each run that did not finish


def compute(target: Target, jobs: int, *, quiet: bool, engine: Engine | None = None) -> TableRuns:
    """Compute the runs that are missing, and read the results of all."""
    runs = target.runs()
    unfinished = [run.settings for run in runs if not RunFolder(run.settings.folder()).is_finished()]
    for dataset, data_dir in dict.fromkeys((each.dataset, each.data_dir) for each in unfinished):
        data.load(dataset, data_dir)  # raises before any process is started if the images are not here
    grid = run_grid(runs, jobs, quiet=quiet, engine=engine)
    failed = {job.name: job.error for job in grid if job.error}
    if not any(job.folder.is_finished() for job in grid):
        raise RunError(f"no run finished ({'; '.join(dict.fromkeys(failed.values()))})")
    return collect(target, runs, quiet=quiet)._replace(failed=failed)


def collect(target: Target, runs: Sequence[Resolved], *, quiet: bool = True) -> TableRuns:
    """Read the results of the finished runs among `runs`, with what was evaluated later."""
    settings: dict[str, Settings] = {}
    accuracies: dict[str, list[dict[str, float]]] = {}
    for resolved in runs:
        name, folder, own = row_of(resolved), RunFolder(resolved.settings.folder()), dict[str, float]()
        if folder.is_finished():
            settings[name] = folder.read_settings()
            own = _accuracy(target, folder, resolved.settings, quiet=quiet)
        percent = {metric: 100 * value for metric, value in own.items()}
        accuracies.setdefault(name, []).append(percent)  # empty if missing: rows are compared seed by seed
    return TableRuns({name: cells_of(own) for name, own in accuracies.items()}, settings, {})


def _accuracy(target: Target, folder: RunFolder, settings: Settings, *, quiet: bool) -> dict[str, float]:
    """Read the accuracies of a run, or measure those at the radii of the table that its records lack."""
    if target.grid.kind != "evaluation":
        return dict(with_later_results(folder)["accuracy"])
    own = settings.model if is_custom(settings.model) else None
    subject = subject_of_run(str(folder.path), model=own, data_dir=settings.data_dir)
    images, chosen = subject.images()
    threats = subject.threats(",".join(target.grid.radii))
    known: Any = {"num_classes": subject.dataset.num_classes, "network": subject.network}
    options = EvaluationOptions(device=pick_device(settings.device), progress=not quiet, **known)
    attacks, about = create_all(target.attack_names), subject.about | {"images": chosen}
    evaluations = evaluate_into(folder, subject.model, images, threats, attacks, options, about)
    return {
        f"{attack}@{radius}": evaluation.accuracy[attack]
        for radius, evaluation in zip(target.grid.radii, evaluations, strict=True)
        for attack in target.attack_names
        if attack in evaluation.accuracy
    }


def scaled_down(target: Target, settings: Mapping[str, Settings]) -> dict[str, tuple[Any, Any]]:
    """Return the settings in which the runs are smaller than, or by `config` differ from, the paper's."""
    full = {row_of(run): run.settings for run in target.full_runs()}
    found: dict[str, tuple[Any, Any]] = {}
    chosen = read_config_file(target.config).values if target.config else {}
    for key in dict.fromkeys((*SCALED, *(key for key in chosen if key != "set"))):
        pairs = [(_size(own, key), _size(full[name], key)) for name, own in settings.items() if name in full]
        different = Counter(pair for pair in pairs if pair[0] != pair[1])
        if different:
            found[key] = different.most_common(1)[0][0]
    return found


def _size(settings: Settings, key: str) -> Any:
    """Return a setting; a width that is not set is the model's own."""
    value = getattr(settings, key)
    if key == "width" and value is None and not is_custom(settings.model):
        return models.info(settings.model).options.get("width")
    return value


def gaps(rows: Mapping[str, Mapping[str, Cell]], reference: str = "sora") -> Cells:
    """Add to each metric, as METRIC-gap, its distance to the reference row, seed by seed, in points."""
    result: Cells = {}
    for row, cells in rows.items():
        result[row] = dict(cells)
        for metric, own in cells.items():
            theirs = rows.get(reference, {}).get(metric)
            if theirs and row != reference:
                pairs = zip(own.values, theirs.values, strict=True)
                differences = [None if a is None or b is None else a - b for a, b in pairs]
                result[row][f"{metric}-gap"] = Cell(tuple(differences))
    return result


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
    images = "no images held out" if "limit_train" in smaller else "all training images"
    protocol = f"{images}, last weights"
    if any(settings.keep != "last" for settings in runs.settings.values()):
        protocol = "weights chosen on held-out training images"
    lines = [f"ours: {ours}, {count} seed{'s' if count != 1 else ''}, {protocol}"]
    if smaller:
        texts = [
            f"{TITLES.get(key, key)} {_text(key, here)} (full: {_text(key, full)})"
            for key, (here, full) in smaller.items()
        ]
        lines.append(f"differs from the {grid.source}: {', '.join(texts)}")
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


def _text(key: str, value: Any) -> str:
    """Return a setting as a user would write it."""
    if value is None:
        return "the model's own" if key == "width" else "all"
    return (",".join(value) or "none") if isinstance(value, tuple) else str(value)


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
    own_width = [f"width {width} instead of the model's own"] if width else []
    return _without_runs(target, texts, numbers, header, *own_width)


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
