"""Helpers that all pictures share. Importing this imports matplotlib: do so only to draw a picture."""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # draws into files and works without a screen
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

__all__ = ["BLUE", "GREEN", "GREY", "RED", "panels", "plt", "save"]

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


def save(figure: Figure, file: Path, dpi: int = 110) -> None:
    """Write the picture under a temporary name, rename it, and close the figure."""
    if figure.get_layout_engine() is None:
        figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}")
    figure.savefig(temporary, dpi=dpi, format="png")
    plt.close(figure)
    temporary.replace(file)
