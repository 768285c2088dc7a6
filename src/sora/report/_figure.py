"""What all pictures share: no screen, one place for colours, whole files only."""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # writing files needs no screen
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

RED, BLUE, GREEN, GREY = "#c1272d", "#0b6e99", "#3c8d40", "#888888"


def panels(count: int, width: float = 5.0, height: float = 3.8) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels, at most three a row."""
    columns = min(count, 3)
    rows = math.ceil(count / columns)
    figure, grid = plt.subplots(rows, columns, figsize=(width * columns, height * rows), squeeze=False)
    found = list(grid.flat)
    for spare in found[count:]:
        spare.axis("off")
    return figure, found[:count]


def save(figure: Figure, file: Path, dpi: int = 110) -> None:
    """Write and rename, then forget the figure."""
    if figure.get_layout_engine() is None:
        figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}")
    figure.savefig(temporary, dpi=dpi, format="png")
    plt.close(figure)
    temporary.replace(file)
