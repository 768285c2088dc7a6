"""A figure as a file: a picture, or a page of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sora._files import create_folder
from sora.errors import UserError
from sora.figures import PAGES, PICTURES, Figure
from sora.report.page import write_figure_page


def check_names(files: Sequence[Path]) -> None:
    """Raise for a file of a kind that cannot be written, before anything is measured."""
    for file in files:
        if file.suffix.lower() not in (*PICTURES, *PAGES):
            raise UserError(f"{str(file)!r} must end in one of {', '.join((*PICTURES, *PAGES))}")


def write_figure(figure: Figure, file: Path, title: str) -> None:
    """Write a figure in the format that the file's name ends in."""
    create_folder(file.parent)
    if file.suffix.lower() in PAGES:
        write_figure_page(figure, file, title)
    else:
        from sora.figures import on_paper

        on_paper.save(figure, file)
