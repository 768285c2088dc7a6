"""The tables of `sora evaluate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from sora.errors import UserError
from sora.evaluation import Evaluation


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=number == 0)
    return table


def attack_table(found: Evaluation) -> Table:
    """One threat: attacks one under the other."""
    columns = ("attack", "accuracy", "95 % interval", "n")
    table = _table(f"{found.threat.norm} eps {found.threat.given}", columns)
    for name, share in found.accuracy.items():
        table.add_row(name, _percent(share), _interval(found.attacks[name]), str(found.n))
    worst = found.worst_case
    table.add_row("worst case", _percent(worst["accuracy"]), _interval(worst), str(found.n), style="bold")
    return table


def threat_table(found: Sequence[Evaluation]) -> Table:
    """Several threats: one a row, as in tables over the test radius."""
    names = list(dict.fromkeys(name for each in found for name in each.accuracy))
    table = _table("accuracy in % (95 % interval)", ("norm", "eps", *names, "worst case"))
    for each in found:
        cells = [_cell(each, name) if name in each.accuracy else "" for name in names]
        table.add_row(each.threat.norm, each.threat.given, *cells, _percent(each.worst_case["accuracy"]))
    return table


def class_table(found: Evaluation, classes: Sequence[str]) -> Table:
    """Accuracy of each class under each attack."""
    table = _table("accuracy by class", ("class", *found.accuracy))
    columns = [found.per_class(name) for name in found.accuracy]
    for number, name in enumerate(classes):
        table.add_row(name, *(_percent(column[number]) for column in columns))
    return table


def confusion_table(found: Evaluation, name: str, classes: Sequence[str]) -> Table:
    """What each class is taken for under an attack."""
    if name not in found.predictions:
        raise UserError(f"--confusion {name!r} was not evaluated; allowed: {', '.join(found.predictions)}")
    table = _table(f"true class (rows) and prediction (columns) under {name}", ("", *classes))
    for true, row in zip(classes, found.confusion(name).tolist(), strict=True):
        table.add_row(true, *map(str, row))
    return table


def _cell(found: Evaluation, name: str) -> str:
    low, high = (f"{100 * found.attacks[name][end]:.1f}" for end in ("low", "high"))
    return f"{100 * found.accuracy[name]:.1f} ({low}-{high})"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _interval(found: Mapping[str, Any]) -> str:
    return f"{100 * found['low']:.1f} - {100 * found['high']:.1f}"
