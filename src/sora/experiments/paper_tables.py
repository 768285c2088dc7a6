"""From a table of the paper to our results in it, for every kind of table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sora._devices import pick_device
from sora.errors import RunError, UserError
from sora.experiments import facts
from sora.experiments.beside_paper import Cell, Table, cells_of
from sora.experiments.engines import Engine
from sora.experiments.paper import Value
from sora.experiments.reproduce import (
    MAIN,
    SCALED,
    Outcome,
    Target,
    collect,
    compute,
    gaps,
    scaled_down,
)
from sora.runs import RunFolder
from sora.runs.provenance import machine, machine_line
from sora.settings import Resolved, differences

Numbers = Mapping[str, Mapping[str, Value]]


def reproduce(target: Target, jobs: int = 0, *, quiet: bool = False, engine: Engine | None = None) -> Table:
    """Compute what is missing and make the table."""
    numbers, dataset, model = target.numbers()
    kind = target.grid.kind
    if kind == "overview":
        return _without_runs(
            target,
            facts.overview(target, numbers),
            ["ours: the data sets on this machine; `sora data get NAME` fetches one"],
        )
    if kind == "cost":
        given = str(target.given.get("device") or "auto")
        device = "cpu" if given == "auto" else str(pick_device(given))
        line = (
            f"measured on {target.model_name} at the shape of {target.dataset_name}, one batch of "
            f"{facts.BATCH} images, {machine_line(machine(device))}; memory: tensors alive at once, "
            "in multiples of FGSM's; "
            "passes in batches"
        )
        width = target.scale.get("width")
        return _without_runs(
            target,
            facts.cost(target, numbers, device),
            [line, *([f"scaled down: width {width}"] if width else [])],
        )
    check_folders(target)
    if kind == "derived":
        outcome = _derived(target)
    else:
        outcome = compute(target, jobs, quiet=quiet, engine=engine)
    return _with_runs(target, outcome, numbers, (dataset, model))


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
    """Attacks are added to a finished run by `sora evaluate`, which computes only those."""
    changed = differences(folder.read_config(), resolved.settings)
    if folder.is_finished() and len(changed) == 1 and changed[0].startswith("attacks "):
        raise UserError(
            f"the run in {folder.path} was evaluated with other attacks: {changed[0]}; repeat --attacks "
            f"as it was, and add others by `sora evaluate {folder.path} --attacks NAME`"
        )


def _refuse_another_experiment(folder: RunFolder, resolved: Resolved) -> None:
    """A derived table takes runs of any size with any attacks, but no other data set, network or method."""
    free = ("attacks", "data_dir", *SCALED)
    changed = differences(folder.read_config(), resolved.settings)
    other = [text for text in changed if text.split()[0] not in free]
    if other:
        raise UserError(
            f"the run in {folder.path} has other settings: {'; '.join(other)}; repeat the flags of "
            f"`sora reproduce {MAIN}`, or choose another --out"
        )


def _derived(target: Target) -> Outcome:
    """Gaps between runs that exist; nothing is trained for a derived table."""
    outcome = collect(target, target.runs())
    return outcome._replace(values=gaps(outcome.values))


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


def _with_runs(target: Target, outcome: Outcome, numbers: Numbers, paper_has: tuple[str, str]) -> Table:
    grid, rows = target.grid, [variant.name for variant in target.variants()]
    metrics = _metrics(target, outcome, numbers)
    cells = cells_of(rows, metrics, outcome.values, numbers)
    smaller = scaled_down(target, outcome.settings)
    same = paper_has == (target.dataset_name, target.model_name)
    labels = tuple(
        dict.fromkeys(cell.paper.label for row in cells.values() for cell in row.values() if cell.paper)
    )
    return Table(
        grid.name,
        grid.title,
        tuple(_header(target, smaller, paper_has, labels, outcome)),
        tuple(metrics),
        cells,
        comparable=same and not smaller,
        source=grid.source,
        deviation=grid.deviation,
        labels=labels,
        notes=grid.notes,
        facts=_facts(target, smaller, paper_has),
        failed=outcome.failed,
    )


def _metrics(target: Target, outcome: Outcome, numbers: Numbers) -> list[str]:
    """The table's own columns, and what was evaluated besides."""
    if target.grid.kind == "evaluation":
        wanted = [f"{attack}@{radius}" for attack in target.attack_names for radius in target.grid.radii]
    elif target.grid.kind == "derived":
        wanted = [name for attack in target.attack_names for name in (attack, f"{attack}-gap")]
    else:
        wanted = target.attack_names
    found = [metric for values in outcome.values.values() for metric in values]
    extra = [] if target.grid.kind == "derived" else found  # main's other attacks have no gap in the paper
    return list(dict.fromkeys([*wanted, *extra]))


def _header(
    target: Target,
    smaller: Mapping[str, tuple[Any, Any]],
    paper_has: tuple[str, str],
    labels: Sequence[str],
    outcome: Outcome,
) -> list[str]:
    ours = f"{target.dataset_name}, {target.model_name}"
    measured = [values for row in outcome.values.values() for values in row.values()]
    count = max((sum(value is not None for value in values) for values in measured), default=0)
    seeds = f"{count} seed{'s' if count != 1 else ''}"
    lines = [f"ours: {ours}, {seeds}, {_protocol(outcome, smaller)}"]
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
    if target.grid.kind == "derived" and not outcome.values:
        lines.append(
            f"no finished runs in {target.folder}; `sora reproduce {MAIN} --dataset {target.dataset_name}` "
            "computes them"
        )
    return lines


def _protocol(outcome: Outcome, smaller: Mapping[str, tuple[Any, Any]]) -> str:
    """Which images are trained on and which weights are tested."""
    if any(settings.keep != "last" for settings in outcome.settings.values()):
        return "weights chosen on held-out training images"
    images = "no images held out" if "limit_train" in smaller else "all training images"
    return f"{images}, last weights"


def _title(key: str) -> str:
    names = {"limit_train": "training images", "limit_test": "test images", "batch_size": "batch size"}
    return names.get(key, key)


def _full(key: str, value: Any) -> str:
    unset = "the network's own" if key == "width" else "all"
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
