"""What a figure shows, as plain data: panels with axes, and in each panel a list of items.

`on_paper` draws it into a file (PDF, SVG or PNG, by matplotlib), `on_page` describes it to Plotly for a page.
Importing this module imports no drawing library.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias
from zlib import crc32

# Okabe and Ito's colours, which colour-blind readers can tell apart; some are darkened, so that each has a
# contrast of at least 3:1 against the page's white and against its dark background.
BLUE, RED, GREEN, ORANGE = "#0072b2", "#d55e00", "#009e73", "#b97c00"
PINK, SKY, GREY = "#c2659a", "#3a99d0", "#7f858d"
OTHERS = (RED, GREEN, ORANGE, PINK, SKY, GREY)  # BLUE is SORA's alone
# A method has one colour in every figure. These take theirs in turn; that of any other follows from its name.
METHODS = (
    *("fgsm", "n-fgsm", "fgsm-rs", "gradalign", "free", "pgd-10", "aaer", "atas", "multigrad"),
    *("zerograd", "elle", "benign", "nuat", "trades", "pgd-2"),
)

Style = Literal["solid", "dashed", "dotted"]
Marker = Literal["", "circle", "square", "triangle", "diamond", "cross", "plus", "star"]
STYLES: tuple[Style, ...] = ("solid", "dashed", "dotted")
MARKERS: tuple[Marker, ...] = ("circle", "square", "triangle", "diamond")
ATTACKS: Mapping[str, Style] = {"clean": "dotted", "fgsm": "dashed", "pgd10": "solid"}  # lines of accuracies
Numbers = Sequence[float | None]  # None: a gap
Grid = Sequence[Sequence[float]]  # rows along y

PICTURES, PAGES = (".pdf", ".svg", ".png"), (".html", ".htm")  # the files that a figure can be written to


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
    """Single points; `spread` is drawn above and below each."""

    x: Numbers
    y: Numbers
    name: str = ""
    colour: str = BLUE
    marker: Marker = "circle"
    size: float = 8.0
    spread: Numbers = ()
    hollow: bool = False
    outline: str = ""
    in_legend: bool = True


@dataclass(frozen=True)
class Bars:
    """Bars at 0, 1, ...; their labels, which may be equal, are written below unless the axis has names."""

    labels: Sequence[str]
    values: Sequence[float]


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
    """A short white text at a point."""

    x: float
    y: float
    text: str


@dataclass(frozen=True)
class Contours:
    """Values over a plane as colours; those above `top` share the last one."""

    x: Sequence[float]
    y: Sequence[float]
    z: Grid
    top: float
    name: str = ""


@dataclass(frozen=True)
class Surface(Contours):
    """Values over a plane as a surface in space."""


@dataclass(frozen=True)
class Regions:
    """A class for each point of a plane; the border of one class is drawn as a line."""

    x: Sequence[float]
    y: Sequence[float]
    classes: Sequence[Sequence[int]]
    colours: Mapping[int, str]
    border_of: int
    names: Mapping[int, str] = field(default_factory=dict)  # of the classes; their numbers without


@dataclass(frozen=True)
class Picture:
    """An image of integers from 0 to 255, in rows of pixels with one or three channels."""

    pixels: Sequence[Sequence[Sequence[int]]]


Item: TypeAlias = Line | Points | Bars | Rule | Span | Note | Contours | Surface | Regions | Picture


@dataclass(frozen=True)
class Axis:
    """An axis; limits that are None follow the data."""

    label: str = ""
    low: float | None = None
    high: float | None = None
    percent: bool = False
    whole: bool = False  # ticks at integers only
    scale: Literal["linear", "log", "symlog"] = "linear"  # symlog: linear around 0, on the page everywhere
    names: Mapping[float, str] = field(default_factory=dict)  # texts in place of ticks, by position


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    items: Sequence[Item]
    title: str = ""
    x: Axis = Axis()
    y: Axis = Axis()
    square: bool = False  # both axes have the same scale
    name: str = ""  # what its row of panels shows, for the first panel of a row of images
    legend: bool = True

    @property
    def is_picture(self) -> bool:
        """Whether it is one image without axes."""
        return len(self.items) == 1 and isinstance(self.items[0], Picture)


@dataclass(frozen=True)
class Figure:
    """Panels, row by row."""

    panels: Sequence[Panel | None]  # None leaves a place empty
    columns: int = 3  # panels per row
    title: str = ""  # a line above the panels
    width: float = 5.0  # inches per panel in a file
    height: float = 3.8
    share_x: bool = False  # all rows have the same x axis: in a file, only the last is labelled
    legend_below: str | None = None  # one legend of all panels, with this title, in place of one in each
    caption: str = ""  # what the figure shows, in a sentence; the page prints it


class Look(NamedTuple):
    """How the curve or the points of a run are drawn."""

    colour: str
    style: Style
    marker: Marker


def colour_of(method: str) -> str:
    """Return the colour of a method; grey if it is not known."""
    if method in ("", "sora"):
        return BLUE if method else GREY
    number = METHODS.index(method) if method in METHODS else crc32(method.encode())
    return OTHERS[number % len(OTHERS)]


def looks(methods: Mapping[str, str]) -> dict[str, Look]:
    """Return the looks of runs or rows with these names and methods; those of one colour differ otherwise."""
    seen: Counter[str] = Counter()
    found = {}
    for name, method in methods.items():
        colour = colour_of(method)
        number, seen[colour] = seen[colour], seen[colour] + 1
        marker = "star" if name == "sora" else MARKERS[number % len(MARKERS)]
        found[name] = Look(colour, STYLES[number % len(STYLES)], marker)
    return found


def thin(x: Numbers, y: Numbers, points: int) -> tuple[Numbers, Numbers]:
    """Return at most about `points` of a curve: its ends, and the extremes of each of many intervals."""
    if len(x) <= points:
        return x, y
    count = max(1, points // 2 - 1)
    size = len(x) / count
    kept = {0, len(x) - 1}
    for number in range(count):
        interval = [k for k in range(int(number * size), int((number + 1) * size)) if y[k] is not None]
        if interval:
            kept |= {min(interval, key=lambda k: y[k] or 0.0), max(interval, key=lambda k: y[k] or 0.0)}
    places = sorted(kept)
    return [x[k] for k in places], [y[k] for k in places]
