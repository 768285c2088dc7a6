"""The tables of `sora evaluate` and `sora train`."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from sora.attacks import create
from sora.cli._tables import VERDICT_STYLE, table_console
from sora.errors import UserError
from sora.evaluation import Evaluation
from sora.evaluation.card import PROTOCOL
from sora.evaluation.scores import percent
from sora.training import TrainResult


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        justify: Any = "right" if number else "left"
        table.add_column(column, justify=justify, no_wrap=number == 0, overflow="fold")
    return table


def attack_table(evaluation: Evaluation, title: str | None = None) -> Table:
    """Return one row per attack under one threat, which is the title if none is given."""
    columns = ("attack", "accuracy", "95 % interval", "n")
    table = _table(title or f"{evaluation.threat.norm} eps {evaluation.threat.given}", columns)
    *attacks, worst = evaluation.rows()
    for row in attacks:
        table.add_row(*row)
    table.add_row(*worst, style="bold")
    return table


def print_evaluations(
    evaluations: Sequence[Evaluation],
    classes: Sequence[str],
    note: str,
    *,
    per_class: bool,
    confusion: str | None,
) -> None:
    """Print what `sora evaluate` found under each threat: tables, `note` below them, verdicts, warnings."""
    console = table_console()
    console.print(attack_table(evaluations[0]) if len(evaluations) == 1 else threat_table(evaluations))
    if evaluations[0].remark:
        console.print(evaluations[0].remark, style="dim")
    for each in evaluations:
        if per_class:
            console.print(class_table(each, classes))
        if confusion:
            attack = create(confusion).for_classes(each.num_classes).name
            for table in confusion_tables(each, attack, classes, console.width):
                console.print(table)
        if each.trust:
            console.print(trust_table(each))
    for text in (text for each in evaluations for text in _starts(each)):
        console.print(text)
    console.print(PROTOCOL, style="dim")
    console.print(note)
    for each in evaluations:  # last, where they are seen
        where = f"{each.threat.norm} {each.threat.given}"
        if each.verdict:
            console.print(Text.assemble(f"{where}: ", (each.verdict, VERDICT_STYLE[each.verdict])))
        for text in each.warnings:
            console.print(f"{where}: warning: {text}", style="yellow")
        for finding in each.failed_tests:
            console.print(f"{where}: failed: {finding.test}: {finding.advice}", style="red")


def print_result(result: TrainResult, folder: Path) -> None:
    """Print the result of one run: the table of `sora evaluate`, then the verdict."""
    summary, console = result.summary, table_console()
    title = f"{summary['method']} on {summary['dataset']}, seed {summary['seed']}"
    console.print(attack_table(result, title))
    if result.remark:
        console.print(result.remark, style="dim")
    verdict = Text(result.verdict or "no verdict", VERDICT_STYLE.get(result.verdict or "", ""))
    events, watched = summary["co"]["events"], summary["co"]["watched_steps"]
    none = "no alarm" if watched else "no alarm possible (no PertAlign, or too few steps)"
    alarm = f"first alarm at step {events[0]['step']}" if events else none
    radius = f"{result.threat.norm} eps {result.threat.given}"
    console.print(Text.assemble(f"{radius}; ", verdict, f", {alarm}; {folder}"))


def threat_table(evaluations: Sequence[Evaluation]) -> Table:
    """Return one row per threat, as in tables over the test radius."""
    names = list(dict.fromkeys(name for each in evaluations for name in each.accuracy))
    table = _table("accuracy in % (95 % interval)", ("norm", "eps", *names, "worst case"))
    for each in evaluations:
        cells = [_cell(each, name) if name in each.accuracy else "" for name in names]
        table.add_row(each.threat.norm, each.threat.given, *cells, percent(each.worst_case["accuracy"]))
    return table


def trust_table(evaluation: Evaluation) -> Table:
    """Return one row per masking test."""
    title = f"masking tests, {evaluation.threat.norm} eps {evaluation.threat.given}"
    table = Table("test", "outcome", title=title, title_justify="left")
    for column in table.columns:
        column.no_wrap = True
    for name in ("number", "limit", "n"):
        table.add_column(name, justify="right")
    table.add_column("measured")
    styles = {"failed": "red", "passed": "green", "not applicable": "dim"}
    for each in evaluation.trust:
        numbers = ["" if number is None else f"{number:.3g}" for number in (each.value, each.threshold)]
        outcome = Text(each.outcome, styles[each.outcome])
        table.add_row(each.test, outcome, *numbers, str(each.n or ""), each.text)
    return table


def class_table(evaluation: Evaluation, classes: Sequence[str]) -> Table:
    """Return the accuracy of each class under each attack."""
    table = _table("accuracy by class", ("class", *evaluation.accuracy))
    columns = [evaluation.per_class(name) for name in evaluation.accuracy]
    for number, name in enumerate(classes):
        table.add_row(name, *(percent(column[number]) for column in columns))
    return table


def confusion_tables(
    evaluation: Evaluation, attack: str, classes: Sequence[str], width: int
) -> Iterator[Table]:
    """Yield true classes against predicted classes under an attack, in blocks of columns that fit a width."""
    if attack not in evaluation.predictions:
        allowed = ", ".join(evaluation.predictions)
        raise UserError(f"--confusion {attack!r} was not evaluated; allowed: {allowed}")
    rows = evaluation.confusion(attack).tolist()
    longest = max(map(len, classes))
    count = max(1, (width - longest - 4) // (longest + 3))
    title = f"true class (rows) and prediction (columns) under {attack}"
    for first in range(0, len(classes), count):
        block = slice(first, first + count)
        table = _table("" if first else title, ("", *classes[block]))
        for true, row in zip(classes, rows, strict=True):
            table.add_row(true, *map(str, row[block]))
        yield table


def _starts(evaluation: Evaluation) -> Iterator[str]:
    """Yield the seed of each attack with a random start, and what other seeds gave."""
    for name, own in evaluation.settings.items():
        if own.get("start") == "random":
            text = f"{name}: random start, seed {own['seed']}"
            if over := own.get("seeds"):
                spread = ", ".join(f"{word} {percent(over[word])}" for word in ("min", "mean", "max"))
                text += f"; over the {over['n']} seeds from {own['seed']} on: {spread}"
            yield text


def _cell(evaluation: Evaluation, attack: str) -> str:
    low, high = (f"{100 * evaluation.attacks[attack][end]:.1f}" for end in ("low", "high"))
    return f"{100 * evaluation.accuracy[attack]:.1f} ({low}-{high})"
