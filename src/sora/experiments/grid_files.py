"""A grid of named variants from a YAML file of the user; the paper's grids have the same shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sora.errors import UserError, short, unknown
from sora.experiments.variants import Variant, from_file, options_of, refuse_code_and_places
from sora.settings.files import flatten, read_yaml_file

KEYS = ("title", "dataset", "model", "attacks", "settings", "rows")
IGNORED = ("labels", "kind", "notes", "radii")  # of the paper's grids


@dataclass(frozen=True)
class GridFile:
    """What a file says about all rows, and the rows."""

    settings: Mapping[str, Any]
    variants: list[Variant]

    def with_flags(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of all rows, those given explicitly over the file's; `set` is merged key by key."""
        return {**self.settings, **given, "set": options_of(self.settings) | options_of(given)}


def read_grid(path: str) -> GridFile:
    """The grid in a file; it may name neither code to import nor a place to write to."""
    content = read_yaml_file(path, "grid file")
    rows = content.get("rows") if isinstance(content, Mapping) else None
    if not isinstance(rows, Mapping) or not rows:
        raise UserError(f"grid file {path!r} has no rows; expected rows: {{NAME: {{method: sora, ...}}}}")
    for key in content:
        if key not in (*KEYS, *IGNORED):
            raise unknown(f"key in {path}", str(key), KEYS)
    return GridFile(_settings(content, path), [from_file(name, row, path) for name, row in rows.items()])


def _settings(content: Mapping[str, Any], path: str) -> dict[str, Any]:
    common = content.get("settings") or {}
    if not isinstance(common, Mapping):
        raise UserError(f"settings in {path} is {short(common)}; expected a table of settings")
    values = flatten(common, path)
    for key in ("dataset", "model"):
        if isinstance(content.get(key), list):
            raise UserError(f"{key} in {path} is a list; give one value; put others in separate rows")
    values |= {key: content[key] for key in ("dataset", "model", "attacks") if content.get(key)}
    refuse_code_and_places(values, path)
    return values
