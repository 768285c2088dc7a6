"""The sizes of images that the package's Square attack can divide into tiles."""

from __future__ import annotations

from sora.errors import UserError


def check_size(height: int, width: int, norm: str) -> None:
    """Raise if Square cannot attack images of this size in this norm."""
    if min(height, width) < 5:
        raise UserError(f"square needs images of at least 5x5 pixels; these are {height}x{width}")
    # The package's l2 start puts tiles of this side next to each other, from this margin on; outside the
    # image it ignores tiles of one pixel, and fails on larger ones.
    side = height // 5
    margin = (height - 5 * side) // 2
    if norm == "l2" and side > 1 and any(margin + size // side * side > size for size in (height, width)):
        raise UserError(
            f"square, which is part of aa and aa-plus, cannot attack images of {height}x{width} pixels in l2:"
            " the package's tiles do not fit into them; use apgd-ce,apgd-t,fab-t, or aa-rand"
        )
