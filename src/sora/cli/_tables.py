"""Tables for the terminal."""

from typing import Any

from rich import box
from rich.table import Table

from sora._console import Console

WIDE = 160
VERDICT_STYLE = {"robust": "green", "not robust": "yellow", "suspect": "yellow", "overfitted": "red"}


def text_console(width: int | None = None) -> Console:
    """Return a console that prints text as it is: names of classes and files may look like markup."""
    return Console(width=width, highlight=False, markup=False, emoji=False)


def table_console() -> Console:
    """Return a console for tables; in a file or a pipe they may be wide."""
    console = text_console()
    return console if console.is_terminal else text_console(max(console.width, WIDE))


def plain_table(
    title: str,
    columns: list[str],
    rows: list[list[str]],
    left: int | None = None,
    console: Console | None = None,
) -> None:
    """Print a table; of its columns the first `left` are aligned to the left, all if not given."""
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        justify: Any = "left" if left is None or index < left else "right"
        table.add_column(column, justify=justify, overflow="fold", no_wrap=index == 0)
    for row in rows:
        table.add_row(*row)
    (console or table_console()).print(table)
