"""The rows of a table are named variants: a method with settings of its own, and its runs, one per seed."""

import dataclasses
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sora import methods
from sora._files import absolute
from sora._typed import coerce
from sora.errors import UserError, short, unknown
from sora.settings import Request, Resolved, is_custom
from sora.settings.fields import field_names
from sora.settings.files import flatten, parse_yaml, read_yaml_file

EXAMPLE = "--variant 'no-sampling: sora sora.sample=false batch_size=64'"
LONGEST = 80  # characters of a name
DECIDED = ("out", "seed", "variant")  # settings that differ between the runs of a grid by themselves
PLACES = ("out", "data_dir")  # settings that only the user may name, see SECURITY.md
KEYS = ("title", "dataset", "model", "attacks", "settings", "rows")  # of a grid file
IGNORED = ("labels", "kind", "notes", "radii")  # of the paper's grids, which have the same shape
MAX_SEEDS = 1000


@dataclass(frozen=True)
class Variant:
    """One row: its name in tables and its settings, the method among them."""

    name: str
    values: Mapping[str, Any] = field(default_factory=dict)  # settings by name; hyper-parameters are in `set`

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
        """The name that the run stores; None for a plain method, whose row is named after it."""
        return None if dict(self.values) == {"method": self.name} else self.name


def of_methods(text: str) -> list[Variant]:
    """Return one variant per method in a text with commas; `all` stands for those of the paper's tables."""
    names = methods.names(in_all=True) if text == "all" else [name.strip() for name in text.split(",")]
    return [Variant(name, {"method": name}) for name in dict.fromkeys(names)]


def parse_variant(text: str) -> Variant:
    """Parse `NAME: METHOD key=value ...`; a key is a setting, METHOD.option or model.option."""
    name, colon, rest = text.partition(":")
    where = f"--variant {short(name.strip())}"
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
            raise UserError(f"{where}: expected key=value, got {short(item)}")
        try:
            parsed = parse_yaml(value)
        except ValueError as error:
            raise UserError(f"{where}: {short(value)} is not a value: {error}") from None
        if key == "method":
            raise UserError(f"{where}: its method is {method}; leave out {item}")
        _put(values, key, parsed)
    return Variant(name.strip(), values)


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    """Add a setting under its own name, or an option such as `sora.beta` under `set`."""
    if key == "set":
        values["set"] = options_of(values) | options_of({"set": value})
    elif "." in key:
        values.setdefault("set", {})[key] = value
    else:
        values[key.replace("-", "_")] = value


def options_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyper-parameters among settings, which are in `set`; it may be missing."""
    options = values.get("set")
    if options is not None and not isinstance(options, Mapping):
        raise UserError(f"set is {short(options)}; expected a table of names and values")
    return {str(key): value for key, value in (options or {}).items()}


def _row_of_file(name: object, row: object, where: str) -> Variant:
    if not isinstance(row, Mapping):
        raise UserError(f"row {short(name)} in {where} is {short(row)}; expected a table of settings")
    values: dict[str, Any] = {}
    for key, value in row.items():
        _put(values, str(key), value)
    _refuse_code_and_places(values, f"row {short(name)} in {where}")
    return Variant(str(name), values)


def _refuse_code_and_places(values: Mapping[str, Any], where: str) -> None:
    """Raise if a file names code to import or a place to write to, which only the command line may."""
    for key in PLACES:
        if key in values:
            raise UserError(f"{where} sets {key}; name it on the command line: --{key.replace('_', '-')}")
    model = values.get("model")
    if isinstance(model, str) and is_custom(model):
        raise UserError(
            f"{where} names the model {short(model)}, which runs your own code; "
            f"to allow it, name it on the command line: --model {short(model)}"
        )


def _check_distinct(variants: Sequence[Variant]) -> None:
    """Raise if two rows would share a run folder."""
    slugs: dict[str, Variant] = {}
    for variant in variants:
        other = slugs.setdefault(variant.slug.lower(), variant)
        if other is not variant:
            raise UserError(
                f"the variants {short(other.name)} and {short(variant.name)} would share the folder "
                f"{variant.slug}-s0; rename one of them"
            )


def read_grid(path: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[Variant]]:
    """Read the settings of all rows and the rows from a user's YAML file.

    What is `given` wins over the settings in the file, `set` is merged key by key. The file may name neither
    code to import nor a place to write to.
    """
    content = read_yaml_file(path, "grid file")
    rows = content.get("rows") if isinstance(content, Mapping) else None
    if not isinstance(rows, Mapping) or not rows:
        raise UserError(f"grid file {path!r} has no rows; expected rows: {{NAME: {{method: sora, ...}}}}")
    for key in content:
        if key not in (*KEYS, *IGNORED):
            raise unknown(f"key in {path}", str(key), KEYS)
    common = content.get("settings") or {}
    if not isinstance(common, Mapping):
        raise UserError(f"settings in {path} is {short(common)}; expected a table of settings")
    values = flatten(common, path)
    for key in ("dataset", "model"):
        if isinstance(content.get(key), list):
            raise UserError(f"{key} in {path} is a list; give one value; put others in separate rows")
    values |= {key: content[key] for key in ("dataset", "model", "attacks") if content.get(key)}
    _refuse_code_and_places(values, path)
    variants = [_row_of_file(name, row, path) for name, row in rows.items()]
    return {**values, **given, "set": options_of(values) | options_of(given)}, variants


def plan(request: Request, variants: Sequence[Variant], seeds: int, folder: Path) -> list[Resolved]:
    """Resolve the settings of every run, in the order of variants, then seeds: seed, seed + 1, ...

    What a variant says wins over the request, which is common to all runs. They go to `folder`/NAME-sSEED.
    """
    if not 1 <= seeds <= MAX_SEEDS:
        raise UserError(f"--seeds is {seeds}; allowed: 1 to {MAX_SEEDS}")
    _check_distinct(variants)
    wanted = request.wanted()
    rows = [(variant, variant.method or wanted.get("method", "sora")) for variant in variants]
    names = list(dict.fromkeys(method for _, method in rows))
    families = {methods.info(name).family for name in names} | {"model"}
    stray = [key for key in options_of(request.given) if key.split(".")[0] not in families]
    if stray:
        raise UserError(f"{stray[0]!r} belongs to none of the methods {', '.join(names)}")
    first = coerce("seed", wanted.get("seed", 0), int)
    return [
        _resolve(request, variant, method, seed, folder)
        for variant, method in rows
        for seed in range(first, first + seeds)
    ]


def _resolve(request: Request, variant: Variant, method: str, seed: int, folder: Path) -> Resolved:
    known, options = (methods.info(method).family, "model"), options_of(request.given)
    common = {key: value for key, value in options.items() if key.split(".")[0] in known}
    own = {key: value for key, value in variant.values.items() if key != "set"}
    own_options, name = options_of(variant.values), variant.stored_name
    out = str(folder / f"{variant.slug}-s{seed}")
    decided = {"method": method, "seed": seed, "variant": name, "out": out}
    given = {**request.given, **own, **decided, "set": common | own_options}
    resolved = dataclasses.replace(request, given=given).resolve()
    named = [*own, *(f"set.{key}" for key in own_options)] if name else []
    origins = {**resolved.origins, **dict.fromkeys(named, f"variant {variant.name}")}
    if name is None:
        del origins["variant"]
    settings = resolved.settings
    if settings.data_dir is not None:  # every process of a grid is given this folder and stores it
        settings = dataclasses.replace(settings, data_dir=str(absolute(settings.data_dir)))
    return dataclasses.replace(resolved, settings=settings, origins=origins)
