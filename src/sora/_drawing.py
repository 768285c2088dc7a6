"""Helpers that all pictures share. Importing this imports matplotlib: do so only to draw a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # draws into files and works without a screen
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

__all__ = ["BLUE", "GREEN", "GREY", "RED", "legend_below", "panels", "plt", "save"]

RED, BLUE, GREEN, GREY = "#c1272d", "#0b6e99", "#3c8d40", "#888888"


def panels(
    count: int, width: float = 5.0, height: float = 3.8, columns: int = 3
) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels, at most `columns` per row."""
    columns = min(count, columns)
    rows = math.ceil(count / columns)
    figure, grid = plt.subplots(rows, columns, figsize=(width * columns, height * rows), squeeze=False)
    axes = list(grid.flat)
    for unused in axes[count:]:
        unused.axis("off")
    return figure, axes[:count]


def legend_below(figure: Figure, entries: Mapping[str, Any], fontsize: float = 10, title: str = "") -> None:
    """A legend under all panels, with as many columns as fit into the width of the figure.

    Args:
        figure: The figure, whose layout engine must be able to make room ("constrained").
        entries: What each label stands for, in the order of the legend.
        fontsize: Size of the text.
        title: A line above the entries.
    """
    for columns in range(min(len(entries), 8), 0, -1):
        legend = figure.legend(
            entries.values(), entries, loc="outside lower center", ncols=columns, frameon=False,
            fontsize=fontsize, title=title or None,
        )  # fmt: skip
        if columns == 1 or legend.get_window_extent().width < 0.98 * figure.bbox.width:
            return
        legend.remove()


def save(figure: Figure, file: Path, dpi: int = 110) -> None:
    """Write the picture under a temporary name, rename it, and close the figure."""
    if figure.get_layout_engine() is None:
        figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}")
    figure.savefig(temporary, dpi=dpi, format="png")
    plt.close(figure)
    temporary.replace(file)
