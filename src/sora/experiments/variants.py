"""Named variants: what a row of a table is, a method with settings of its own."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sora import methods
from sora.errors import UserError, short, unknown
from sora.settings import is_custom
from sora.settings.fields import field_names
from sora.settings.files import parse_yaml

EXAMPLE = "--variant 'no-sampling: sora sora.sample=false batch_size=64'"
LONGEST = 80  # characters of a name
DECIDED = ("out", "seed", "variant")  # settings that differ between the runs of a grid by themselves
PLACES = ("out", "data_dir")  # settings that only the user may name, see SECURITY.md


@dataclass(frozen=True)
class Variant:
    """One row: its name in tables and the settings that make it what it is, with the method among them."""

    name: str
    values: Mapping[str, Any] = field(default_factory=dict)
    """Settings by name; hyper-parameters are in `set`."""

    def __post_init__(self) -> None:
        if not self.slug or len(self.name) > LONGEST or not self.name.isprintable():
            raise UserError(
                f"{short(self.name)} is not a valid name for a variant; allowed: up to {LONGEST} printable "
                "characters, a letter or digit among them"
            )
        if self.method is not None:
            methods.info(self.method)  # raises for an unknown one
        for key in self.values:
            if key in DECIDED:
                raise UserError(
                    f"variant {self.name!r} sets {key}, which differs between the runs of one row"
                )
            if key not in field_names():
                raise unknown(f"setting of variant {self.name!r}", key, field_names())

    @property
    def method(self) -> str | None:
        """Its training method; none: the one that all rows have in common."""
        named = self.values.get("method")
        return None if named is None else str(named)

    @property
    def slug(self) -> str:
        """The name as part of a folder's name: letters, digits and single dashes."""
        return re.sub(r"[^A-Za-z0-9]+", "-", self.name).strip("-")

    @property
    def stored_name(self) -> str | None:
        """What the run remembers as its row; nothing for a plain method, whose row is named after it."""
        return None if dict(self.values) == {"method": self.name} else self.name


def of_methods(names: Sequence[str]) -> list[Variant]:
    """One variant per method, named after it."""
    return [Variant(name, {"method": name}) for name in names]


def parse_variant(text: str) -> Variant:
    """`NAME: METHOD key=value ...`; a key is a setting, METHOD.option or model.option."""
    name, colon, rest = text.partition(":")
    try:
        method, *items = shlex.split(rest)
    except ValueError:  # nothing after the colon, or a quotation mark that is not closed
        method, items = "", []
    if not colon or not method or "=" in method:
        raise UserError(f"--variant takes 'NAME: METHOD key=value ...', e.g. {EXAMPLE}; got {short(text)}")
    values: dict[str, Any] = {"method": method}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise UserError(f"--variant {short(name.strip())}: expected key=value, got {short(item)}")
        try:
            parsed = parse_yaml(value)
        except ValueError as error:
            raise UserError(
                f"--variant {short(name.strip())}: {short(value)} is not a value: {error}"
            ) from None
        if key == "method":
            raise UserError(f"--variant {short(name.strip())}: its method is {method}; leave out {item}")
        _put(values, key, parsed)
    return Variant(name.strip(), values)


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    """A setting goes under its own name, an option such as `sora.beta` under `set`."""
    if key == "set":
        values["set"] = options_of(values) | options_of({"set": value})
    elif "." in key:
        values.setdefault("set", {})[key] = value
    else:
        values[key.replace("-", "_")] = value


def options_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The hyper-parameters among settings, which are in `set`; nothing there stands for none."""
    options = values.get("set")
    if options is not None and not isinstance(options, Mapping):
        raise UserError(f"set is {short(options)}; expected a table of names and values")
    return {str(key): value for key, value in (options or {}).items()}


def from_file(name: object, row: object, where: str) -> Variant:
    """A row of a grid file, which may name neither code to import nor a place to write to."""
    if not isinstance(row, Mapping):
        raise UserError(f"row {short(name)} in {where} is {short(row)}; expected a table of settings")
    values: dict[str, Any] = {}
    for key, value in row.items():
        _put(values, str(key), value)
    refuse_code_and_places(values, f"row {short(name)} in {where}")
    return Variant(str(name), values)


def refuse_code_and_places(values: Mapping[str, Any], where: str) -> None:
    """A file alone decides neither what is imported nor where is written."""
    for key in PLACES:
        if key in values:
            raise UserError(f"{where} sets {key}; name it on the command line: --{key.replace('_', '-')}")
    model = values.get("model")
    if isinstance(model, str) and is_custom(model):
        raise UserError(
            f"{where} names the network {short(model)}, which runs your own code; "
            f"to allow it, name it on the command line: --model {short(model)}"
        )


def check_distinct(variants: Sequence[Variant]) -> None:
    """Raise if two rows would share a run folder."""
    slugs: dict[str, str] = {}
    for variant in variants:
        slug = variant.slug.lower()
        if slug in slugs:
            raise UserError(
                f"the variants {short(slugs[slug])} and {short(variant.name)} would share the folder "
                f"{variant.slug}-s0; rename one of them"
            )
        slugs[slug] = variant.name
