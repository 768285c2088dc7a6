"""A table for notebooks: plain HTML that takes the colours of the page around it, light or dark."""

from collections.abc import Sequence
from html import escape

_CELL = "border-bottom:1px solid rgba(128,128,128,.4);padding:.2em .8em;text-align:"


def html_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], notes: Sequence[str] = ()
) -> str:
    """Return a table with a title above and notes below; any text may come from a user's file."""

    def line(tag: str, cells: Sequence[object]) -> str:
        sides = ["left", *["right"] * (len(cells) - 1)]
        pairs = ((escape(str(cell)), side) for cell, side in zip(cells, sides, strict=True))
        inside = (f'<{tag} style="{_CELL}{side}">{cell}</{tag}>' for cell, side in pairs)
        return f"<tr>{''.join(inside)}</tr>"

    head = f"<caption><b>{escape(title)}</b></caption>" if title else ""
    body = "".join([line("th", columns), *(line("td", row) for row in rows)])
    below = "".join(f"<p>{escape(note)}</p>" for note in notes)
    return f'<table style="border-collapse:collapse">{head}{body}</table>{below}'
