"""Fewer points of a long log, so that no peak or drop is lost from its picture."""

from __future__ import annotations

from collections.abc import Sequence

from sora.figures.description import Numbers


def thin(x: Sequence[float], y: Numbers, points: int) -> tuple[list[float], list[float | None]]:
    """At most about `points` of a curve: of each stretch its lowest and its highest value, and both ends."""
    if len(x) <= points:
        return list(x), list(y)
    count = max(1, points // 2 - 1)
    size = len(x) / count
    kept = {0, len(x) - 1}
    for number in range(count):
        stretch = [k for k in range(int(number * size), int((number + 1) * size)) if y[k] is not None]
        if stretch:
            kept |= {min(stretch, key=lambda k: y[k] or 0.0), max(stretch, key=lambda k: y[k] or 0.0)}
    places = sorted(kept)
    return [x[k] for k in places], [y[k] for k in places]
