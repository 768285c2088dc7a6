"""What a figure shows, as plain data: panels with axes, and in each panel a list of items.

Nothing here knows how a figure is drawn; `on_paper` (PDF, SVG, PNG) and `on_page` (HTML) do. Importing this
imports no drawing library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

# Each has a contrast of at least 3:1 against the page's white and against its dark background.
RED, BLUE, GREEN, ORANGE, PURPLE = "#d1413b", "#2f7fc1", "#2b9a66", "#d07b12", "#8b68c8"
TEAL, PINK, BROWN, OLIVE, GREY = "#1592a0", "#cf5b9c", "#a8703a", "#7f8f2a", "#878d96"
PALETTE = (BLUE, RED, GREEN, ORANGE, PURPLE, TEAL, PINK, BROWN, OLIVE, GREY)

Style = Literal["solid", "dashed", "dotted"]
Marker = Literal["", "circle", "square", "triangle", "diamond", "cross", "plus", "star"]
Numbers = Sequence[float | None]  # None: a gap
Grid = Sequence[Sequence[float]]  # rows along y


@dataclass(frozen=True)
class Line:
    """A curve; `low` and `high` shade a band around it."""

    x: Numbers
    y: Numbers
    name: str = ""
    colour: str = BLUE
    style: Style = "solid"
    width: float = 1.8
    marker: Marker = ""
    low: Numbers = ()
    high: Numbers = ()
    in_legend: bool = True


@dataclass(frozen=True)
class Points:
    """Single points, with a text beside each if `texts` are given; `spread` is drawn to either side."""

    x: Sequence[float | str | None]
    y: Numbers
    name: str = ""
    colour: str = BLUE
    marker: Marker = "circle"
    size: float = 8.0
    texts: Sequence[str] = ()
    spread: Numbers = ()
    hollow: bool = False
    outline: str = ""
    in_legend: bool = True


@dataclass(frozen=True)
class Bars:
    """Bars at 0, 1, ...; their labels, which may be equal, stand below unless the axis has names."""

    labels: Sequence[str]
    values: Sequence[float]
    name: str = ""
    colour: str = BLUE


@dataclass(frozen=True)
class Rule:
    """A straight line across the panel, at a value of the axis `x` (upright) or `y` (level)."""

    at: float
    axis: Literal["x", "y"] = "x"
    name: str = ""
    colour: str = GREY
    style: Style = "dotted"
    in_legend: bool = True


@dataclass(frozen=True)
class Span:
    """A shaded range of the x axis."""

    start: float
    end: float
    name: str = ""
    colour: str = RED


@dataclass(frozen=True)
class Note:
    """A short text at a point."""

    x: float
    y: float
    text: str
    colour: str = "white"


@dataclass(frozen=True)
class Contours:
    """Values over a plane as colours; those above `top` share the last one."""

    x: Sequence[float]
    y: Sequence[float]
    z: Grid
    top: float
    name: str = ""


@dataclass(frozen=True)
class Surface:
    """Values over a plane as a surface in space."""

    x: Sequence[float]
    y: Sequence[float]
    z: Grid
    top: float
    name: str = ""


@dataclass(frozen=True)
class Regions:
    """A class for each point of a plane, the border of one class drawn as a line."""

    x: Sequence[float]
    y: Sequence[float]
    classes: Sequence[Sequence[int]]
    colours: Mapping[int, str]
    border_of: int


@dataclass(frozen=True)
class Picture:
    """An image of whole numbers from 0 to 255, in rows of pixels of one or three channels."""

    pixels: Sequence[Sequence[Sequence[int]]]


Item: TypeAlias = Line | Points | Bars | Rule | Span | Note | Contours | Surface | Regions | Picture


@dataclass(frozen=True)
class Axis:
    """An axis; limits that are None follow the data."""

    label: str = ""
    low: float | None = None
    high: float | None = None
    percent: bool = False
    whole: bool = False
    """Ticks at whole numbers only."""
    log: bool = False
    names: Mapping[float, str] = field(default_factory=dict)
    """Texts in place of ticks, by position."""


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    items: Sequence[Item]
    title: str = ""
    x: Axis = Axis()
    y: Axis = Axis()
    square: bool = False
    """Both axes have the same scale."""
    name: str = ""
    """What its row of panels shows, for the first panel of a row of images."""
    legend: bool = True

    @property
    def is_picture(self) -> bool:
        """Whether it is one image without axes."""
        return len(self.items) == 1 and isinstance(self.items[0], Picture)


@dataclass(frozen=True)
class Figure:
    """Panels, row by row.

    Attributes:
        panels: The panels; None leaves a place empty.
        columns: Panels per row.
        title: A line above the panels.
        width: Inches per panel in a file.
        height: Inches per panel in a file.
        legend_below: One legend of all panels, with this title, in place of one in each.
        caption: What the figure shows, in a sentence; the page prints it.
    """

    panels: Sequence[Panel | None]
    columns: int = 3
    title: str = ""
    width: float = 5.0
    height: float = 3.8
    legend_below: str | None = None
    caption: str = ""
