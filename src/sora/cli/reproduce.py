"""`sora reproduce TABLE`: a table of the paper, computed here and printed beside the paper's numbers."""

import dataclasses
import os
import sys
from dataclasses import dataclass
from typing import Any

from sora.cli._flags import EngineFlags
from sora.cli._parse import DATA_DIR, changed, flag, parse, print_json
from sora.cli._tables import WIDE, plain_table, text_console
from sora.errors import RunError, UserError

_COLUMN, _SPACING = 16, 3  # characters: the widest column of numbers, and the gap between two columns
_PROTOCOL_FLAGS = ("epochs", "width", "limit_train", "limit_test")
_ENGINE_FLAGS = tuple(field.name for field in dataclasses.fields(EngineFlags))
_WITHOUT_EFFECT = {  # on tables that train nothing, by their kind
    "overview": ("methods", "attacks", "seeds", "seed", "config", *_PROTOCOL_FLAGS, *_ENGINE_FLAGS),
    "cost": ("attacks", "seeds", "seed", "config", "epochs", "limit_train", "limit_test", *_ENGINE_FLAGS),
    "derived": (),  # the flags of the runs it is made from may be repeated
}
_MACHINE_FLAGS = ("device", "threads", "data_dir", "seed")


@dataclass(frozen=True)
class TableFlags:
    """The flags that say which table is computed, and how."""

    table: str | None = flag(None, "a name from --list", metavar="[TABLE]", positional=True)
    list: bool = flag(False, "print the tables and stop")
    dataset: str | None = flag(None, "data set; default: the table's first")
    model: str | None = flag(None, "network; default: the table's first")
    methods: str | None = flag(None, "rows to compute, by name or by method")
    attacks: str | None = flag(None, "attacks instead of the table's")
    seeds: int = flag(3, "runs per row: seed, seed+1, ...")
    config: str | None = flag(None, "YAML file of settings in which every run differs from the paper")
    epochs: int | None = flag(None, "epochs; default: the paper's")
    width: int | None = flag(None, "channels of the first stage")
    limit_train: int | None = flag(None, "training images, class-balanced")
    limit_test: int | None = flag(None, "test images, class-balanced")
    seed: int = flag(0, "the first seed")
    out: str | None = flag(None, "folder; default: runs/reproduce/TABLE-DATASET-MODEL")
    data_dir: str | None = flag(None, DATA_DIR)
    device: str = flag("auto", "cpu, cuda, cuda:1, mps, xpu ...; auto: a GPU if there is one")
    threads: int = flag(0, "CPU threads per run; 0: the cores divided by the jobs")


@dataclass(frozen=True)
class Flags(EngineFlags, TableFlags):
    """Compute a table of the paper and print it beside the paper's numbers.

    It follows the paper's protocol: all training images, last weights, three seeds. `fastat` is the public
    benchmark, with a protocol of its own. Repeating the command continues: finished runs are not computed
    again. `sora reproduce --list` names the tables.
    """

    dry_run: bool = flag(False, "print what would be computed and how long it would take")
    quiet: bool = flag(False, "print nothing while working")
    json: bool = flag(False, "print the result as JSON")


def run(argv: list[str]) -> int:
    """Compute, write the files, print."""
    flags = parse(Flags, argv, "reproduce")
    if flags.list:
        return _list(as_json=flags.json)
    from sora.experiments import paper

    if flags.table is None:
        raise UserError(f"name a table; allowed: {', '.join(paper.names())} (`sora reproduce --list`)")
    target = _target(flags)
    if flags.dry_run:
        return _dry_run(target, flags)
    from sora.experiments.beside_paper import write
    from sora.experiments.reproduce import reproduce

    with flags.chosen_engine() as engine:
        table = reproduce(target, flags.jobs, quiet=flags.quiet, engine=engine)
    write(table, target.folder)
    if flags.json:
        print_json(table.record())
    else:
        _print(table)
        print(f"{target.folder / target.grid.name}.json, .csv, .md, .tex")
    for name, error in table.failed.items():
        print(f"sora: {name} failed: {error}", file=sys.stderr)
    if table.failed:
        raise RunError(f"{len(table.failed)} runs failed; the table holds the others; repeat the command")
    return 0


def _target(flags: Flags) -> Any:
    from sora.experiments import paper
    from sora.experiments.target import Target

    grid = paper.load(str(flags.table))
    for name, known in (("dataset", grid.datasets), ("model", grid.models)):
        if getattr(flags, name) and not known:
            raise UserError(f"--{name} cannot be combined with {grid.name}")
    for name in changed(flags, *_WITHOUT_EFFECT.get(grid.kind, ())):
        raise UserError(f"{name} has no effect on {grid.name}, for which nothing is trained")
    scale, given = (
        {name: getattr(flags, name) for name in names if getattr(flags, name) is not None}
        for names in (_PROTOCOL_FLAGS, _MACHINE_FLAGS)
    )
    chosen = flags.seeds, _names(flags.methods), _names(flags.attacks)
    return Target(grid, flags.dataset, flags.model, *chosen, scale, given, flags.out, flags.config)


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip()) if text else ()


def _list(*, as_json: bool) -> int:
    from sora.experiments import paper

    rows, records = [], []
    for grid in map(paper.load, paper.names()):
        used = [", ".join(names) or "-" for names in (grid.datasets, grid.models)]
        rows.append([grid.name, grid.title, str(len(grid.rows)), *used])
        lists = {key: list(getattr(grid, key)) for key in ("datasets", "models", "attacks", "labels")}
        records.append({"table": grid.name, "title": grid.title, "rows": len(grid.rows), **lists})
    if as_json:
        print_json(records)
        return 0
    plain_table("", ["table", "title", "rows", "data sets", "networks"], rows)
    print(
        "the first data set and network are the default; `sora reproduce TABLE --dry-run` estimates the time"
    )
    return 0


def _dry_run(target: Any, flags: Flags) -> int:
    from sora.experiments.cost import estimate

    flags.check_engine()
    if target.grid.kind in _WITHOUT_EFFECT:
        text = f"{target.grid.name}: no training; it takes minutes at most"
        if flags.json:
            print_json({"runs": 0, "note": text})
        else:
            print(text)
        return 0
    runs = target.runs()
    files, found = flags.batch_files(runs), estimate(runs, flags.jobs, progress=not flags.quiet)
    train, attack = sum(found.train_hours.values()), sum(found.attack_hours.values())
    if flags.json:
        more: dict[str, Any] = {"wall_hours": found.wall_hours, "runs": len(runs)}
        more |= {"batch_files": files} if files else {}
        print_json(vars(found) | more)
        return 0
    print(f"{target.grid.title}: {len(runs)} runs in {target.folder}, {found.finished} finished")
    print(f"training {_hours(train)}, attacks at most {_hours(attack)}")
    if target.grid.kind == "evaluation":
        print(f"and the attacks again at {len(target.grid.radii)} radii")
    threads = f"{found.threads} thread{'s' if found.threads != 1 else ''}"
    print(f"about {_hours(found.wall_hours)} with {found.jobs} at once, {threads} each; measured here:")
    print(*(f"  {line}" for line in found.measured), *files, sep="\n")
    return 0


def _hours(hours: float) -> str:
    return f"{hours:,.1f} hours" if hours >= 1 else f"{60 * hours:.1f} minutes"


def _print(table: Any) -> None:
    """Print the table in blocks of columns that fit the console's width."""
    from sora.experiments.beside_paper import footer, grid_of

    console = text_console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = text_console(WIDE)  # a file or a pipe has no width to keep to
    console.print(f"{table.grid.title} ({table.grid.name})", style="bold")
    for line in table.header:
        console.print(line, soft_wrap=not console.is_terminal)
    for metrics in _blocks(table, console.width):
        plain_table("", *grid_of(table, metrics), left=2, console=console)
    for line in footer(table):
        console.print(line, soft_wrap=not console.is_terminal)


def _blocks(table: Any, width: int) -> list[list[str]]:
    """Return the metrics in groups whose columns fit a width, at least one in each."""
    from sora.experiments.beside_paper import grid_of

    left = width - max(len(row) for row in table.cells) - len(table.grid.source) - 3 * _SPACING
    blocks: list[list[str]] = [[]]
    room = left
    for metric in table.metrics:
        head, lines = grid_of(table, [metric])
        needed = min(_COLUMN, max(len(line[2]) for line in (head, *lines))) + _SPACING
        if blocks[-1] and needed > room:
            blocks.append([])
            room = left
        blocks[-1].append(metric)
        room -= needed
    return blocks
