"""The passes of a training step, as far as a run's own options leave them known."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NamedTuple

from sora import methods
from sora.errors import RunError, UserError
from sora.runs import RunFolder
from sora.settings import Settings

UNKNOWN = "-"


class Passes(NamedTuple):
    """Forward and backward passes over one batch in one step, as text."""

    forwards: str
    backwards: str


def passes_of_run(folder: RunFolder, summary: Mapping[str, Any]) -> Passes:
    """The passes of a run; unknown if its settings cannot be read, or PGD replaced its method at times.

    Args:
        folder: The run.
        summary: What was read of it; empty if it has not finished.
    """
    if any(
        "pgd_batches" in (event.get("changed") or {}) for event in summary.get("co", {}).get("events", ())
    ):
        return Passes(UNKNOWN, UNKNOWN)
    try:
        return passes_of(folder.read_settings())
    except (RunError, UserError):  # also for a method that is not installed here
        return Passes(UNKNOWN, UNKNOWN)


def passes_of(settings: Settings) -> Passes:
    """The passes that the registry states for a run's method and its options.

    A formula such as `steps + 1` is computed. Otherwise the registry states them for the usual values of the
    options that change them, and they are unknown for others.
    """
    entry, hyper = methods.info(settings.method), settings.hyper()
    formula, usual = methods.info(entry.family), entry.cls.hyper_class.build(dict(entry.preset))
    values = {field.name: getattr(hyper, field.name) for field in fields(hyper)}
    if any(re.search(rf"\b{name}\b", formula.forwards) for name in values):
        return Passes(_total(_filled(formula.forwards, values)), _filled(formula.backwards, values))
    if any(values[name] != getattr(usual, name) for name in entry.pass_options):
        return Passes(UNKNOWN, UNKNOWN)
    return Passes(entry.forwards, entry.backwards)


def _filled(formula: str, values: dict[str, Any]) -> str:
    return re.sub(r"[A-Za-z_]\w*", lambda found: str(values.get(found[0], found[0])), formula)


def _total(text: str) -> str:
    parts = text.split(" + ")
    return str(sum(map(int, parts))) if all(part.isdigit() for part in parts) else text
