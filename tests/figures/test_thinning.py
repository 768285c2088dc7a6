"""Long logs are thinned without losing a peak."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sora.figures import thin


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=400), st.integers(4, 60))
def test_extremes_ends_and_order_are_kept(values: list[float], points: int) -> None:
    x, y = thin(list(range(len(values))), values, points)
    assert len(x) <= max(points, 4)
    assert (x[0], x[-1]) == (0, len(values) - 1)
    assert x == sorted(set(x))
    assert [values[int(step)] for step in x] == y
    assert min(y) == min(values)  # type: ignore[type-var]
    assert max(y) == max(values)  # type: ignore[type-var]


def test_a_short_curve_is_unchanged() -> None:
    assert thin([1, 2, 3], [0.5, None, 0.7], 3) == ([1, 2, 3], [0.5, None, 0.7])
