"""`sora list`: what there is to choose from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

from sora.cli._parse import parse
from sora.cli._tables import plain_table
from sora.errors import UserError

Kind = Literal["methods", "models", "data", "attacks", "metrics", "probes", "recipes"]
Row = dict[str, Any]
METHODS_LEGEND = """\
Order: as in the paper's tables; methods that are not in them follow.
passes F / B: forward and backward passes over the batch per step. "2 / 1 in + 1" is the attack's forward pass
  and its backward pass to the input only, then one of each for the weights; "joint": one backward for both,
  "two graphs": one backward through the attack's pass as well.
norms: the norms it is defined for (--norm).
needs: what `sora train` provides and a loop of your own must: setup (call method.setup once), index and
  transform (arguments of step), after_update (call method.after_update after each step of the optimiser).
  eval-mode craft: the attack runs in evaluation mode; second order: gradients of gradients.
`sora show NAME` prints a method's page; `sora list methods --cost` measures passes, memory and time here."""


@dataclass(frozen=True)
class Flags:
    """List methods, models, data sets, attacks, metrics, probes or recipes."""

    kind: Annotated[tyro.conf.Positional[Kind], tyro.conf.arg(help="what to list")] = "methods"
    cost: Annotated[bool, tyro.conf.arg(help="methods: measure passes, memory and time here")] = False
    json: Annotated[bool, tyro.conf.arg(help="print as JSON")] = False


def run(argv: list[str]) -> int:
    """Print one table."""
    flags = parse(Flags, argv, "list")
    if flags.cost and flags.kind != "methods":
        raise UserError("--cost goes with `sora list methods`")
    rows = _costs(raw=flags.json) if flags.cost else _ROWS[flags.kind]()
    if flags.json:
        print(json.dumps(rows, indent=2))
    else:
        plain_table("", list(rows[0]), [[str(value) for value in row.values()] for row in rows])
        if flags.kind == "methods" and not flags.cost:
            print(METHODS_LEGEND)
    return 0


def _methods() -> list[Row]:
    from sora import methods

    entries = [methods.info(name) for name in methods.names()]
    return [
        {
            "method": entry.name,
            "what it does": entry.summary,
            "venue": entry.venue or "-",
            "passes F / B": f"{entry.forwards} / {entry.backwards}",
            "norms": ", ".join(entry.norms),
            "needs": ", ".join(entry.needs) or "-",
        }
        for entry in entries
    ]


def _models() -> list[Row]:
    from sora import models

    entries = [models.info(name) for name in models.names()]
    return [{"model": entry.name, "what it is": entry.summary, "paper": entry.paper} for entry in entries]


def _data() -> list[Row]:
    from sora import data

    return [{"data set": name, "what it is": data.info(name).summary} for name in data.names()]


def _attacks() -> list[Row]:
    from sora import attacks

    return [{"attack": name, "what it does": attacks.info(name).summary} for name in attacks.names()]


def _metrics() -> list[Row]:
    from sora import metrics

    return [{"metric": name, "what it is": metrics.info(name).summary} for name in metrics.names()]


def _probes() -> list[Row]:
    from sora import probes

    return [
        {"probe": name, "what it shows": probes.info(name).summary, "images": probes.info(name).images or "-"}
        for name in probes.names()
    ]


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


_ROWS = {
    "methods": _methods,
    "models": _models,
    "data": _data,
    "attacks": _attacks,
    "metrics": _metrics,
    "probes": _probes,
    "recipes": _recipes,
}
