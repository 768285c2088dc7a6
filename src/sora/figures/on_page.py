"""Figures for the page: each panel as the data and layout that Plotly draws, each image as a `data:` URL.

Plotly's Python package is not needed for this. The page, which has a light and a dark theme, sets the colours
of text, grid and background. Text may come from files of unknown origin: Plotly interprets a few tags and
entities in text, so they are escaped here.
"""

import base64
import html
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import singledispatch
from typing import Any

from sora import figures as fig

Json = dict[str, Any]
DASHES = {"solid": "solid", "dashed": "dash", "dotted": "dot"}
SYMBOLS = {"": "circle", "circle": "circle", "square": "square", "triangle": "triangle-up"}
SYMBOLS |= {"diamond": "diamond", "cross": "x", "plus": "cross", "star": "star"}
DIGITS = 4  # significant digits of a number in the page
POINTS = 600  # of a curve, unless the caller needs fewer


@dataclass
class _Plot:
    """What a panel becomes, part by part."""

    points: int
    traces: list[Json] = field(default_factory=list)
    shapes: list[Json] = field(default_factory=list)
    annotations: list[Json] = field(default_factory=list)


def render(figure: fig.Figure, points: int = POINTS) -> list[Json]:
    """Return the panels of a figure for the page's template, without surfaces, which only files show.

    Each has `title`, `name`, and either `plot`, what Plotly draws, or `image`, a `data:` URL.
    """
    panels = [panel for panel in figure.panels if panel is not None]
    return [_render_panel(panel, points) for panel in panels if panel.is_picture or is_drawn(panel)]


def is_drawn(panel: fig.Panel) -> bool:
    """Return whether Plotly draws the panel: images are embedded, surfaces left out."""
    return not panel.is_picture and not any(isinstance(item, fig.Surface) for item in panel.items)


def _render_panel(panel: fig.Panel, points: int) -> Json:
    about: Json = {"title": panel.title, "name": panel.name}
    if panel.is_picture:
        [picture] = panel.items
        return {**about, "image": _data_url(picture), "plot": None}  # type: ignore[arg-type]
    plot = _Plot(points)
    for item in panel.items:
        _add(item, plot)
    plane = any(isinstance(item, (fig.Contours, fig.Regions)) for item in panel.items)
    over_x = any(isinstance(item, fig.Line) for item in panel.items) and not plane
    labels = [label for item in panel.items if isinstance(item, fig.Bars) for label in item.labels]
    names = {float(at): label for at, label in enumerate(labels)}
    layout: Json = {
        "xaxis": _axis(replace(panel.x, names=panel.x.names or names)),
        "yaxis": _axis(panel.y),
        "hovermode": "x unified" if over_x else "closest",
        "showlegend": panel.legend and any(trace.get("showlegend") for trace in plot.traces),
    }
    if panel.square:
        layout["yaxis"] |= {"scaleanchor": "x", "constrain": "domain"}
        layout["xaxis"] |= {"constrain": "domain"}
    layout |= {key: parts for key in ("shapes", "annotations") if (parts := getattr(plot, key))}
    return {**about, "image": None, "plot": {"data": plot.traces, "layout": layout}}


def _axis(axis: fig.Axis) -> Json:
    drawn: Json = {"title": {"text": _escaped(axis.label)}}
    if axis.names:
        drawn |= {"tickvals": list(axis.names), "ticktext": [_escaped(text) for text in axis.names.values()]}
    elif axis.percent:
        drawn |= {"tickformat": ".0%", "hoverformat": ".1%"}
    elif axis.whole:
        drawn |= {"tickformat": ",d"}
    log = axis.scale == "log"
    if log:
        drawn |= {"type": "log", "dtick": 1}
    if axis.low is not None and axis.high is not None:
        ends = (axis.low, axis.high)
        drawn["range"] = [math.log10(end) for end in ends] if log else list(ends)
    elif axis.low == 0:
        drawn["rangemode"] = "tozero"
    return drawn


def _escaped(text: str) -> str:
    """Return text that Plotly shows literally, with its line breaks."""
    return html.escape(text, quote=False).replace("\n", "<br>")


def _rounded(values: Sequence[float | None]) -> list[float | None]:
    """Return numbers with as many digits as a picture can show; None for gaps and what is not finite."""
    return [_number(value) for value in values]


def _number(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.{DIGITS}g}")


def _data_url(picture: fig.Picture) -> str:
    import numpy as np
    from PIL import Image

    pixels = np.array(picture.pixels, dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(buffer, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _legend(item: Any) -> Json:
    return {"name": _escaped(item.name), "showlegend": bool(item.name) and item.in_legend}


@singledispatch
def _add(item: fig.Item, plot: _Plot) -> None:
    raise TypeError(f"no drawing of {type(item).__name__}")


@_add.register
def _(item: fig.Line, plot: _Plot) -> None:
    line: Json = {"color": item.colour, "width": item.width, "dash": DASHES[item.style]}
    x, y = item.x, item.y
    if len(item.low):
        edge: Json = {"type": "scatter", "mode": "lines", "x": _rounded(x), "line": {"width": 0}}
        edge |= {"hoverinfo": "skip", "showlegend": False}
        fill = {"fill": "tonexty", "fillcolor": _pale(item.colour)}
        plot.traces += [edge | {"y": _rounded(item.low)}, edge | fill | {"y": _rounded(item.high)}]
    else:
        x, y = fig.thin(x, y, plot.points)
    trace = {"type": "scatter", "x": _rounded(x), "y": _rounded(y), "line": line}
    trace |= {"mode": "lines+markers" if item.marker or len(x) == 1 else "lines"}
    trace |= {"marker": {"symbol": SYMBOLS[item.marker], "size": 5}, "legendgroup": _escaped(item.name)}
    plot.traces.append(trace | _legend(item))


@_add.register
def _(item: fig.Points, plot: _Plot) -> None:
    marker: Json = {"symbol": SYMBOLS[item.marker], "size": item.size * 1.25, "color": item.colour}
    if item.hollow:
        marker |= {"symbol": f"{SYMBOLS[item.marker]}-open", "line": {"width": 2, "color": item.colour}}
    trace: Json = {"type": "scatter", "mode": "markers", "x": _rounded(item.x), "y": _rounded(item.y)}
    trace |= {"marker": marker, "cliponaxis": False, **_legend(item)}
    if len(item.spread):
        look = {"color": item.colour, "thickness": 1.4, "width": 4}
        trace["error_y"] = {"array": _rounded(item.spread), **look}
    plot.traces.append(trace)


@_add.register
def _(item: fig.Bars, plot: _Plot) -> None:
    trace: Json = {"type": "bar", "x": list(range(len(item.labels))), "y": _rounded(item.values)}
    trace |= {"marker": {"color": fig.GREY}, "showlegend": False, "hoverinfo": "text+y"}
    plot.traces.append(trace | {"hovertext": [_escaped(label) for label in item.labels]})


@_add.register
def _(item: fig.Rule, plot: _Plot) -> None:
    if not math.isfinite(item.at):
        return
    line = {"color": item.colour, "width": 1.5, "dash": DASHES[item.style]}
    at, along = item.axis, "y" if item.axis == "x" else "x"
    place = {f"{at}0": item.at, f"{at}1": item.at, f"{along}0": 0, f"{along}1": 1, f"{along}ref": "paper"}
    plot.shapes.append({"type": "line", "line": line, "layer": "below", **place})
    if item.name and item.in_legend:  # a shape has no entry in the legend
        entry = {"type": "scatter", "mode": "lines", "x": [None], "y": [None], "line": line}
        plot.traces.append({**entry, **_legend(item), "hoverinfo": "skip"})


@_add.register
def _(item: fig.Span, plot: _Plot) -> None:
    if math.isfinite(item.start) and math.isfinite(item.end):
        place = {"x0": item.start, "x1": item.end, "y0": 0, "y1": 1, "yref": "paper"}
        look = {"fillcolor": _pale(item.colour), "line": {"width": 0}}
        plot.shapes.append({"type": "rect", **look, **place})


@_add.register
def _(item: fig.Note, plot: _Plot) -> None:
    if None not in (_number(item.x), _number(item.y)):
        look = {"showarrow": False, "font": {"color": "white"}, "yanchor": "bottom"}
        plot.annotations.append({"x": item.x, "y": item.y, "text": _escaped(item.text), **look})


@_add.register
def _(item: fig.Contours, plot: _Plot) -> None:
    top = _round_up(item.top)
    bar = {"title": {"text": _escaped(item.name), "side": "right"}, "thickness": 12, "outlinewidth": 0}
    look: Json = {"colorscale": "Viridis", "contours": {"start": 0, "end": top, "size": top / 20}}
    look |= {"line": {"width": 0}, "zmin": 0, "zmax": top, "colorbar": bar | {"nticks": 6}}
    look |= {"showlegend": False, "hovertemplate": "%{x:.2f}, %{y:.2f}: %{z:.3g}<extra></extra>"}
    plot.traces.append({"type": "contour", **_plane(item, item.z), **look})


@_add.register
def _(item: fig.Regions, plot: _Plot) -> None:
    present = sorted({c for row in item.classes for c in row})
    position = {c: number for number, c in enumerate(present)}
    steps = [number / len(present) for number in range(len(present) + 1)]
    scale = [[end, item.colours[c]] for number, c in enumerate(present) for end in steps[number : number + 2]]
    trace: Json = {"type": "heatmap", **_plane(item, [[position[c] for c in row] for row in item.classes])}
    trace["text"] = [[_escaped(item.names.get(c, f"class {c}")) for c in row] for row in item.classes]
    trace |= {"zmin": -0.5, "zmax": len(present) - 0.5, "colorscale": scale, "showscale": False}
    plot.traces.append(trace | {"hovertemplate": "%{text}<extra></extra>"})


def _plane(item: fig.Contours | fig.Regions, z: fig.Grid) -> Json:
    return {"x": _rounded(item.x), "y": _rounded(item.y), "z": [_rounded(row) for row in z]}


def _round_up(value: float) -> float:
    """Return the next round number, for the end of a scale."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if factor * power >= value)


def _pale(colour: str) -> str:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.15)"
