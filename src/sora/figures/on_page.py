"""Figures for the page: each panel as the data and layout that Plotly draws, each image as a `data:` URL.

Nothing of Plotly's Python package is needed for this. Colours of text, grid and background are left to the
page, which has a light and a dark theme. Text may come from files of unknown origin:
Plotly interprets a few tags and entities in text, so they are escaped here.
"""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import singledispatch
from typing import Any

from sora.figures.description import (
    Axis,
    Bars,
    Contours,
    Figure,
    Item,
    Line,
    Note,
    Panel,
    Picture,
    Points,
    Regions,
    Rule,
    Span,
    Surface,
)

Trace = dict[str, Any]
DASHES = {"solid": "solid", "dashed": "dash", "dotted": "dot"}
SYMBOLS = {"": "circle", "circle": "circle", "square": "square", "triangle": "triangle-up"}
SYMBOLS |= {"diamond": "diamond", "cross": "x", "plus": "cross", "star": "star"}
DIGITS = 4  # significant digits of a number in the page


def render(figure: Figure) -> list[dict[str, Any]]:
    """The panels of a figure, for the page's template; a surface is left to the files.

    Returns:
        For each panel its `title` and either `plot`, what Plotly draws, or `image`, a `data:` URL.
    """
    panels = [panel for panel in figure.panels if panel is not None]
    return [_panel(panel) for panel in panels if panel.is_picture or is_drawn(panel)]


def is_drawn(panel: Panel) -> bool:
    """Whether Plotly draws the panel; a picture is embedded, a surface left out."""
    return not panel.is_picture and not any(isinstance(item, Surface) for item in panel.items)


def _panel(panel: Panel) -> dict[str, Any]:
    about: dict[str, Any] = {"title": panel.title, "name": panel.name}
    if panel.is_picture:
        [picture] = panel.items
        return {**about, "image": data_address(picture), "plot": None}  # type: ignore[arg-type]
    return {**about, "image": None, "plot": _plot(panel)}


def _plot(panel: Panel) -> dict[str, Any]:
    traces: list[Trace] = []
    shapes: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    for item in panel.items:
        _add(item, traces, shapes, notes)
    over_x = any(isinstance(item, Line) for item in panel.items) and not _is_plane(panel)
    layout: dict[str, Any] = {
        "xaxis": _axis(_with_bar_names(panel)),
        "yaxis": _axis(panel.y),
        "hovermode": "x unified" if over_x else "closest",
        "showlegend": panel.legend and any(trace.get("showlegend") for trace in traces),
    }
    if panel.square:
        layout["yaxis"] |= {"scaleanchor": "x", "constrain": "domain"}
        layout["xaxis"] |= {"constrain": "domain"}
    if shapes:
        layout["shapes"] = shapes
    if notes:
        layout["annotations"] = notes
    return {"data": traces, "layout": layout}


def _with_bar_names(panel: Panel) -> Axis:
    labels = [label for item in panel.items if isinstance(item, Bars) for label in item.labels]
    names = panel.x.names or {float(place): label for place, label in enumerate(labels)}
    return replace(panel.x, names=names)


def _is_plane(panel: Panel) -> bool:
    return any(isinstance(item, (Contours, Regions)) for item in panel.items)


def _axis(axis: Axis) -> dict[str, Any]:
    drawn: dict[str, Any] = {"title": {"text": escaped(axis.label)}}
    if axis.names:
        texts = [escaped(text) for text in axis.names.values()]
        drawn |= {"tickvals": list(axis.names), "ticktext": texts}
    elif axis.percent:
        drawn |= {"tickformat": ".0%", "hoverformat": ".1%"}
    elif axis.whole:
        drawn |= {"tickformat": ",d"}
    if axis.log:
        drawn |= {"type": "log", "dtick": 1}
    if axis.low is not None and axis.high is not None:
        ends = (axis.low, axis.high)
        drawn["range"] = [math.log10(end) for end in ends] if axis.log else list(ends)
    elif axis.low == 0:
        drawn["rangemode"] = "tozero"
    return drawn


def escaped(text: str) -> str:
    """Text as Plotly shows it literally, with line breaks kept."""
    return html.escape(text, quote=False).replace("\n", "<br>")


def rounded(values: Sequence[Any]) -> list[Any]:
    """Numbers with as many digits as a picture can show; gaps and numbers that are not finite are None."""
    return [_number(value) for value in values]


def _number(value: Any) -> Any:
    if isinstance(value, str):
        return escaped(value)
    if value is None or not math.isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.{DIGITS}g}")


def data_address(picture: Picture) -> str:
    """An image as a `data:` URL."""
    import numpy as np
    from PIL import Image

    pixels = np.array(picture.pixels, dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(buffer, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _legend(item: Any) -> Trace:
    return {"name": escaped(item.name), "showlegend": bool(item.name) and item.in_legend}


Parts = list[dict[str, Any]]


@singledispatch
def _add(item: Item, traces: list[Trace], shapes: Parts, notes: Parts) -> None:
    raise TypeError(f"no drawing of {type(item).__name__}")


@_add.register
def _(item: Line, traces: list[Trace], shapes: Parts, notes: Parts) -> None:
    x = rounded(item.x)
    if len(item.low):
        edge = {"type": "scatter", "mode": "lines", "x": x, "line": {"width": 0}, "hoverinfo": "skip"}
        traces.append({**edge, "y": rounded(item.low), "showlegend": False})
        fill = {"fill": "tonexty", "fillcolor": _pale(item.colour)}
        traces.append({**edge, **fill, "y": rounded(item.high), "showlegend": False})
    traces.append(
        {
            "type": "scatter",
            "mode": "lines+markers" if item.marker or len(x) == 1 else "lines",
            "x": x,
            "y": rounded(item.y),
            "line": {"color": item.colour, "width": item.width, "dash": DASHES[item.style]},
            "marker": {"symbol": SYMBOLS[item.marker], "size": 5},
            "legendgroup": escaped(item.name),
            **_legend(item),
        }
    )


@_add.register
def _(item: Points, traces: list[Trace], shapes: Parts, notes: Parts) -> None:
    marker: dict[str, Any] = {"symbol": SYMBOLS[item.marker], "size": item.size * 1.25, "color": item.colour}
    if item.hollow:
        marker |= {"symbol": f"{SYMBOLS[item.marker]}-open", "line": {"width": 2, "color": item.colour}}
    trace: Trace = {"type": "scatter", "mode": "markers", "x": rounded(item.x), "y": rounded(item.y)}
    trace |= {"marker": marker, "cliponaxis": False, **_legend(item)}
    if len(item.spread):
        trace["error_y"] = {"array": rounded(item.spread), "color": item.colour, "thickness": 1.4, "width": 4}
    if len(item.texts):
        texts = [escaped(text) for text in item.texts]
        trace |= {"mode": "markers+text", "text": texts, "textposition": "top center"}
    traces.append(trace)


@_add.register
def _(item: Bars, traces: list[Trace], shapes: Parts, notes: Parts) -> None:
    trace: Trace = {
        "type": "bar",
        "x": list(range(len(item.labels))),
        "y": rounded(item.values),
        "marker": {"color": item.colour},
        "name": escaped(item.name),
        "hovertext": [escaped(label) for label in item.labels],
        "hoverinfo": "text+y",
    }
    traces.append(trace | {"showlegend": False})


@_add.register
def _(item: Rule, traces: list[Trace], shapes: Parts, notes: Parts) -> None:
    if not math.isfinite(item.at):
        return
    line = {"color": item.colour, "width": 1.5, "dash": DASHES[item.style]}
    at, along = item.axis, "y" if item.axis == "x" else "x"
    place = {f"{at}0": item.at, f"{at}1": item.at, f"{along}0": 0, f"{along}1": 1, f"{along}ref": "paper"}
    shapes.append({"type": "line", "line": line, "layer": "below", **place})
    if item.name and item.in_legend:  # a shape has no entry in the legend
        entry = {"type": "scatter", "mode": "lines", "x": [None], "y": [None], "line": line}
        traces.append({**entry, **_legend(item), "hoverinfo": "skip"})


@_add.register
def _(item: Span, traces: list[Trace], shapes: Parts, notes: Parts) -> None:
    if not (math.isfinite(item.start) and math.isfinite(item.end)):
        return
    place = {"x0": item.start, "x1": item.end, "y0": 0, "y1": 1, "yref": "paper"}
    shapes.append({"type": "rect", "fillcolor": _pale(item.colour), "line": {"width": 0}, **place})


@_add.register
def _(item: Note, traces: list[Trace], shapes: Parts, notes: Parts) -> None:
    if None in (_number(item.x), _number(item.y)):
        return
    look = {"showarrow": False, "font": {"color": item.colour}, "yanchor": "bottom"}
    notes.append({"x": item.x, "y": item.y, "text": escaped(item.text), **look})


@_add.register
def _(item: Contours, traces: list[Trace], shapes: Parts, notes: Parts) -> None:
    top = _round_up(item.top)
    bar = {
        "title": {"text": escaped(item.name), "side": "right"},
        "thickness": 12,
        "outlinewidth": 0,
        "nticks": 6,
    }
    traces.append(
        {
            "type": "contour",
            "x": rounded(item.x),
            "y": rounded(item.y),
            "z": [rounded(row) for row in item.z],
            "colorscale": "Viridis",
            "contours": {"start": 0, "end": top, "size": top / 20},
            "line": {"width": 0},
            "zmin": 0,
            "zmax": top,
            "colorbar": bar,
            "showlegend": False,
            "hovertemplate": "%{x:.2f}, %{y:.2f}: %{z:.3g}<extra></extra>",
        }
    )


@_add.register
def _(item: Regions, traces: list[Trace], shapes: Parts, notes: Parts) -> None:
    present = sorted({c for row in item.classes for c in row})
    position = {c: number for number, c in enumerate(present)}
    steps = [number / len(present) for number in range(len(present) + 1)]
    scale = [[end, item.colours[c]] for number, c in enumerate(present) for end in steps[number : number + 2]]
    traces.append(
        {
            "type": "heatmap",
            "x": rounded(item.x),
            "y": rounded(item.y),
            "z": [[position[c] for c in row] for row in item.classes],
            "text": [[f"class {c}" for c in row] for row in item.classes],
            "zmin": -0.5,
            "zmax": len(present) - 0.5,
            "colorscale": scale,
            "showscale": False,
            "hovertemplate": "%{text}<extra></extra>",
        }
    )


def _round_up(value: float) -> float:
    """The next round number, for the end of a scale."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if factor * power >= value)


def _pale(colour: str) -> str:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.15)"
