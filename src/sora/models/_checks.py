"""Checks of sizes and options, shared by several networks."""

from __future__ import annotations

from collections.abc import Collection
from numbers import Integral

from sora.errors import UserError, unknown


def check_int(what: str, value: object, low: int = 1, high: int | None = None) -> None:
    """Refuse anything but a whole number from `low` to `high`."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if whole and low <= value and (high is None or value <= high):  # type: ignore[operator]
        return
    allowed = f"from {low} to {high}" if high is not None else f">= {low}"
    raise UserError(f"{what} must be a whole number {allowed}, not {value!r}")


def check_choice(what: str, value: str, allowed: Collection[str]) -> None:
    """Refuse a name that is not one of `allowed`."""
    if value not in allowed:
        raise unknown(what, str(value), allowed)
