"""`sora list`: what there is to choose from."""

import importlib
import shutil
import sys
import textwrap
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sora.cli._parse import flag, parse, print_json
from sora.cli._tables import WIDE, plain_table
from sora.errors import UserError

Kind = Literal["methods", "models", "data", "attacks", "metrics", "probes", "recipes", "zoo"]
Row = dict[str, Any]
METHODS_LEGEND = """\
cost: passes of a step over the network, in multiples of ordinary training.
memory: beyond ordinary training. A graph is the activations of a batch; "2 per image" are two stored
  perturbations for each training image, "per row" for each place in a batch.
norms: the norms it is defined for (--norm).
PertAlign: whether training steps yield it; for the others the guard measures it on a few held-out images.
`sora show NAME` prints a method's page with its passes and what a loop of your own must provide;
`sora list methods --cost` measures passes, memory and time here; docs/choosing.md helps you choose."""


@dataclass(frozen=True)
class Flags:
    """List methods, models, data sets, attacks, metrics, probes, recipes or the models of the zoo."""

    kind: Kind = flag("methods", "what to list", metavar=f"[{{{','.join(get_args(Kind))}}}]", positional=True)
    cost: bool = flag(False, "methods: measure passes, memory and time here")
    json: bool = flag(False, "print as JSON")


def run(argv: list[str]) -> int:
    """Print one table."""
    flags = parse(Flags, argv, "list")
    if flags.cost and flags.kind != "methods":
        raise UserError("--cost applies only to `sora list methods`")
    own = {"methods": _methods, "recipes": _recipes}
    rows = own[flags.kind]() if flags.kind in own else _entries(flags.kind)
    if flags.cost:
        rows = _costs(raw=flags.json)
    if flags.json:
        print_json(rows)
    elif flags.kind == "methods" and not flags.cost:
        _print_methods(rows)
    else:
        plain_table("", list(rows[0]), [[str(value) for value in row.values()] for row in rows])
    return 0


def _print_methods(rows: list[Row]) -> None:
    """Print a block per group: a line of facts per method, and what it does, below it if room is short."""
    from sora.methods import GROUPS

    columns = ("method", "cost", "memory", "norms", "PertAlign")
    costs = ["-" if row["cost"] is None else f"{row['cost']:g}" for row in rows]
    texts = [
        row | {"cost": cost, "PertAlign": "yes" if row["PertAlign"] else "-"}
        for row, cost in zip(rows, costs, strict=True)
    ]
    sizes = [max(len(text[name]) for text in (*texts, {name: name})) for name in columns]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDE
    beside = sum(sizes) + 2 * len(sizes) + max(len(row["what it does"]) for row in rows) <= width

    def show(cells: Row) -> None:
        facts = "  ".join(cells[name].ljust(size) for name, size in zip(columns, sizes, strict=True))
        print(f"{facts}  {cells['what it does']}" if beside else facts.rstrip())

    show({name: name for name in (*columns, "what it does")})
    for group in dict.fromkeys([*GROUPS, *(row["group"] for row in rows)]):
        print(f"\n{group}" + (f": {GROUPS[group]}" if group in GROUPS else ""))
        for text in (text for text in texts if text["group"] == group):
            show(text)
            if not beside:
                print(textwrap.indent(textwrap.fill(text["what it does"], width - 4), " " * 4))
    print(f"\n{METHODS_LEGEND}")


def _methods() -> list[Row]:
    from sora import methods

    entries = [methods.info(name) for name in methods.names()]
    return [
        {
            "method": entry.name,
            "group": entry.group,
            "what it does": entry.summary,
            "venue": entry.venue or "-",
            "cost": entry.cost,
            "passes F / B": f"{entry.forwards} / {entry.backwards}",
            "memory": entry.memory,
            "norms": ", ".join(entry.norms),
            "PertAlign": entry.has_pert_align,
            "needs": ", ".join(entry.needs) or "-",
        }
        for entry in entries
    ]


def _entries(kind: str) -> list[Row]:
    """Return the models of the zoo, or the names of a registry with their summaries."""
    if kind == "zoo":
        from sora.runs import zoo

        return zoo.entries()
    registry: Any = importlib.import_module(f"sora.{kind}")
    column = "data set" if kind == "data" else kind.removesuffix("s")
    about = {"attacks": "what it does", "probes": "what it shows"}.get(kind, "what it is")
    rows = []
    for name in registry.names():  # such as pgd10, which a user can type; its entry is called pgd
        entry = registry.info(name)
        row = {column: name, about: entry.summary}
        row |= {"paper": entry.paper} if kind == "models" else {}
        rows.append(row | ({"images": entry.images or "-"} if kind == "probes" else {}))
    return rows


def _recipes() -> list[Row]:
    from sora.settings import recipes

    keys = ("model", "norm", "eps", "epochs", "batch_size", "optimizer", "schedule")
    contents = [(name, recipes.flattened(name)) for name in recipes.names()]
    return [
        {"recipe": name} | {key.replace("_", " "): values.get(key, "-") for key in keys}
        for name, values in contents
    ]


def _costs(raw: bool) -> list[Row]:
    from sora import methods

    rows = methods.cost_table(methods.names(in_all=True))
    if raw:
        return rows
    return [
        {
            "method": row["name"],
            "paper F / B": row["paper"],
            "F": f"{row['forwards']:g}",
            "B": f"{row['backwards']:g}",
            "peak MB": f"{row['peak_bytes'] / 2**20:.1f}",
            "ms per batch": f"{1000 * row['seconds']:.0f}",
            "time / FGSM": f"{row['relative_time']:.2f}",
        }
        for row in rows
    ]
