"""Figures as PDF, SVG or PNG. Importing this imports matplotlib: do so only to draw."""

import io
import math
import textwrap
from functools import singledispatch
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # draws into files and works without a screen
import numpy as np
from matplotlib import figure as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation

from sora import figures as fig
from sora._files import replace_file
from sora.errors import UserError

STYLES = {"solid": "-", "dashed": "--", "dotted": ":"}
MARKERS = {"": "", "circle": "o", "square": "s", "triangle": "^", "diamond": "D", "cross": "x", "plus": "+"}
MARKERS["star"] = "*"
LETTERS = 10.5  # of a title, per inch
PADDING = 0.09  # inches around panels
UNDER = 0.48  # inches from the axis of a panel to its legend
CROWDED = 8  # names under an axis; more are slanted
POINTS = 2000  # of a curve
# Names of runs and classes may contain a dollar sign, which would begin a formula.
LOOK: Any = {"axes.titlesize": 10.5, "text.parse_math": False, "svg.hashsalt": "sora", "pdf.fonttype": 42}
# Without the date, so that the same figure is the same file.
METADATA: dict[str, dict[str, Any]] = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}, ".png": {}}


def save(figure: fig.Figure, file: Path, dpi: int = 130) -> None:
    """Draw a figure into a file of the kind that its name ends in."""
    kind = file.suffix.lower()
    if kind not in fig.PICTURES:
        raise UserError(f"{str(file)!r} must end in one of {', '.join(fig.PICTURES)}")
    file.parent.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {"dpi": dpi, "format": kind[1:], "metadata": METADATA[kind]}
    with matplotlib.rc_context(LOOK):
        drawn = draw(figure)
        replace_file(file, lambda temporary: drawn.savefig(temporary, **options))


def svg(figure: fig.Figure) -> str:
    """Return a figure as the text of an SVG file."""
    text = io.StringIO()
    with matplotlib.rc_context(LOOK):
        draw(figure).savefig(text, format="svg", metadata=METADATA[".svg"], transparent=True)
    return text.getvalue()


def draw(figure: fig.Figure) -> mpl.Figure:
    """Return the figure in matplotlib."""
    columns = min(len(figure.panels), figure.columns)
    rows = math.ceil(len(figure.panels) / columns)
    layout = ConstrainedLayoutEngine(w_pad=PADDING, h_pad=PADDING)
    drawn = mpl.Figure(figsize=(figure.width * columns, figure.height * rows), layout=layout)
    entries: dict[str, Any] = {}
    for number, panel in enumerate(figure.panels, start=1):
        if panel is None:
            continue
        spatial = any(isinstance(item, fig.Surface) for item in panel.items)
        axes = drawn.add_subplot(rows, columns, number, projection="3d" if spatial else None)
        _draw_panel(axes, panel, figure.width)
        if spatial:  # Matplotlib 3.10 knows the size of its labels only after drawing them once
            axes.draw(FigureCanvasAgg(drawn).get_renderer())  # type: ignore[no-untyped-call]
        if figure.share_x and number + columns <= len(figure.panels):
            axes.set(xlabel="", xticklabels=[])
        handles, labels = axes.get_legend_handles_labels()
        own = dict(zip(labels, handles, strict=True))  # an entry that occurs twice is shown once
        entries |= own
        if panel.legend and figure.legend_below is None and own:
            _legend_under(axes, own, figure.width)
    if figure.title:
        drawn.suptitle(_wrapped(figure.title, 0.9 * figure.width * columns))
    if figure.legend_below is not None and entries:
        look: Any = {"loc": "outside lower center", "frameon": False, "fontsize": 9.5}
        look |= {"ncols": _columns(entries, figure.width * columns), "title": figure.legend_below or None}
        drawn.legend(entries.values(), entries, **look)
    return drawn


def _draw_panel(axes: Any, panel: fig.Panel, width: float) -> None:
    for item in panel.items:
        _draw(item, axes)
    if panel.title:
        axes.set_title(_wrapped(panel.title, width))
    if panel.is_picture:
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        axes.set_ylabel(panel.name, fontsize=9)
        return
    for name, axis in (("x", panel.x), ("y", panel.y)):
        _set_axis(axes, name, axis)
    if panel.square:
        axes.set_aspect("equal")
    if not any(isinstance(item, (fig.Contours, fig.Regions)) for item in panel.items):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.18, linewidth=0.7)
        axes.set_axisbelow(True)


def _wrapped(text: str, inches: float) -> str:
    """Return a title in lines that fit into a width."""
    return "\n".join(textwrap.fill(line, int(LETTERS * inches)) for line in text.splitlines())


def _set_axis(axes: Any, name: str, axis: fig.Axis) -> None:
    ticks = getattr(axes, f"{name}axis")
    axes.set(**{f"{name}label": axis.label})
    if axis.scale != "linear":
        getattr(axes, f"set_{name}scale")(axis.scale, **({"linthresh": 2} if axis.scale == "symlog" else {}))
        ticks.set_major_formatter("{x:g}")  # by default they would be formulas
    if axis.names:
        many = len(axis.names) > CROWDED
        texts = [text.replace("\n", " ") if many else text for text in axis.names.values()]
        ticks.set_ticks(list(axis.names), texts, **({"rotation": 40, "ha": "right"} if many else {}))
    elif axis.percent:
        ticks.set_major_formatter(lambda value, _: f"{100 * value:g}%")
    elif axis.whole:
        ticks.set_major_locator(MaxNLocator(integer=True))
    if axis.low is not None or axis.high is not None:
        axes.set(**{f"{name}lim": (axis.low, axis.high)})


def _legend_under(axes: Any, entries: dict[str, Any], width: float) -> None:
    """Draw the legend of a panel under it, never on its data."""
    down = ScaledTranslation(0, -UNDER, axes.figure.dpi_scale_trans)
    place: Any = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "bbox_transform": axes.transAxes + down}
    # Handles long enough to tell dashes from a line although a marker covers their middle.
    look: Any = {"ncols": _columns(entries, width), "frameon": False, "fontsize": 8.5, "handlelength": 3.4}
    axes.legend(entries.values(), entries, **place, **look)


def _columns(entries: dict[str, Any], width: float) -> int:
    """Return how many entries of a legend fit side by side."""
    return max(1, min(len(entries), int(LETTERS * width / (7 + max(map(len, entries))))))


def _label(item: Any) -> str:
    return item.name if item.name and getattr(item, "in_legend", True) else "_"


def _array(values: fig.Numbers) -> Any:
    return np.array(values, dtype=float)  # None becomes NaN, a gap


@singledispatch
def _draw(item: fig.Item, axes: Any) -> None:
    raise TypeError(f"no drawing of {type(item).__name__}")


@_draw.register
def _(item: fig.Line, axes: Axes) -> None:
    look: dict[str, Any] = {"color": item.colour, "linestyle": STYLES[item.style], "linewidth": item.width}
    look |= {"label": _label(item), "marker": MARKERS[item.marker] or None, "markersize": 3.5}
    if not len(item.low):
        axes.plot(*map(_array, fig.thin(item.x, item.y, POINTS)), **look)
        return
    axes.plot(_array(item.x), _array(item.y), **look)
    band = (_array(values) for values in (item.x, item.low, item.high))
    axes.fill_between(*band, color=item.colour, alpha=0.15, linewidth=0)


@_draw.register
def _(item: fig.Points, axes: Axes) -> None:
    look: dict[str, Any] = {"marker": MARKERS[item.marker], "markersize": item.size, "linestyle": "none"}
    look |= {"color": item.colour, "label": _label(item), "clip_on": item.hollow}  # else cut at the edge
    if item.hollow:
        look |= {"markerfacecolor": "none", "markeredgecolor": item.colour, "markeredgewidth": 1.6}
    x, y, spread = _array(item.x), _array(item.y), np.nan_to_num(_array(item.spread))
    if spread.any():
        axes.errorbar(x, y, yerr=spread, capsize=3, elinewidth=1.2, **look)
    else:
        (drawn,) = axes.plot(x, y, **look)
        if item.outline:
            drawn.set_path_effects([withStroke(linewidth=3.2, foreground=item.outline)])


@_draw.register
def _(item: fig.Bars, axes: Axes) -> None:
    places, labels = range(len(item.labels)), list(item.labels)
    axes.bar(places, list(item.values), tick_label=labels, color=fig.GREY)
    axes.tick_params(axis="x", labelrotation=90 if max(map(len, labels)) > 4 else 0)


@_draw.register
def _(item: fig.Rule, axes: Axes) -> None:
    line = axes.axvline if item.axis == "x" else axes.axhline
    line(item.at, color=item.colour, linestyle=STYLES[item.style], linewidth=1.3, label=_label(item))


@_draw.register
def _(item: fig.Span, axes: Axes) -> None:
    axes.axvspan(item.start, item.end, color=item.colour, alpha=0.10, linewidth=0, label=_label(item))


@_draw.register
def _(item: fig.Note, axes: Axes) -> None:
    outline = [withStroke(linewidth=2, foreground="black")]
    axes.annotate(item.text, (item.x, item.y), color="white", ha="center", path_effects=outline)


def _round_ticks(highest: float) -> Any:
    """Return ticks at round numbers from 0 to at least `highest`."""
    return MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(0, highest)


@_draw.register
def _(item: fig.Contours, axes: Axes) -> None:
    ticks = _round_ticks(item.top)
    levels = MaxNLocator(20).tick_values(0, ticks[-1])
    filled = axes.contourf(item.x, item.y, item.z, levels=levels, cmap="viridis", extend="max")
    axes.figure.colorbar(filled, ax=axes, label=item.name, ticks=ticks)


@_draw.register
def _(item: fig.Surface, axes: Any) -> None:
    ticks = _round_ticks(item.top)
    a, b = np.meshgrid(item.x, item.y)
    axes.plot_surface(a, b, np.array(item.z), cmap="viridis", vmin=0, vmax=ticks[-1], rcount=60, ccount=60)
    axes.set(zlabel=item.name, zlim=(0, ticks[-1]), zticks=ticks)
    axes.set_box_aspect(None, zoom=0.85)  # leaves room for the label of the upright axis


@_draw.register
def _(item: fig.Regions, axes: Axes) -> None:
    classes = np.array(item.classes)
    colours = {c: matplotlib.colors.to_rgb(colour) for c, colour in item.colours.items()}
    half = (item.x[1] - item.x[0]) / 2
    low, high = item.x[0] - half, item.x[-1] + half
    pixels = np.array([[colours[c] for c in row] for row in item.classes])
    axes.imshow(pixels, origin="lower", extent=(low, high, low, high), interpolation="nearest")
    axes.contour(item.x, item.y, classes == item.border_of, levels=[0.5], colors="black", linewidths=0.8)
    for c in sorted(item.colours):  # entries of the legend, the same in every panel
        text = f"predicted: {item.names.get(c, f'class {c}')}"
        axes.plot([], [], marker="s", linestyle="none", color=colours[c], label=text)


@_draw.register
def _(item: fig.Picture, axes: Axes) -> None:
    pixels = np.array(item.pixels, dtype=np.uint8)
    axes.imshow(np.repeat(pixels, 3 // pixels.shape[-1], axis=-1), interpolation="nearest")
