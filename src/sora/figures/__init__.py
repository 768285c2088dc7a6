"""Figures as plain data, with one renderer for files (matplotlib) and one for the page (Plotly)."""

from sora.figures.description import (
    PALETTE,
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

__all__ = [
    "PALETTE",
    "Axis",
    "Bars",
    "Contours",
    "Figure",
    "Item",
    "Line",
    "Note",
    "Panel",
    "Picture",
    "Points",
    "Regions",
    "Rule",
    "Span",
    "Surface",
]
