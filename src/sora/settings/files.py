"""Settings as YAML: the user's config files and a run's `config.yaml`, grouped or flat.

A path that a file names counts only inside the working directory; the user must name any other, on the
command line or as an argument (`SECURITY.md`).
"""

import copy
import dataclasses
import functools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sora import data
from sora import methods as known_methods
from sora._files import SETTINGS, absolute, read_text
from sora.errors import UserError, short, unknown
from sora.settings.fields import Settings, field_names, is_given
from sora.settings.groups import GROUPS

CONFIG_FORMAT = 2  # 1: a flat table without a format number
GRID_CONFIG = "SORA_GRID_CONFIG"  # environment variable: the file in which a grid stored a run's settings
CHECKSUM = "blake2b"  # key of the checksum in a file of a run
ABOUT = (CHECKSUM, "format", "recipe", "origins", "methods", "absolute")  # keys that are no settings


@dataclass(frozen=True)
class ConfigFile:
    """What a file sets for every method, what for single ones, and the recipe it starts from."""

    values: Mapping[str, Any] = field(default_factory=dict)
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    recipe: str | None = None
    origins: Mapping[str, str] = field(default_factory=dict)  # of values, in a file that sora wrote


def read_config_file(path: str) -> ConfigFile:
    """Read a user's YAML file; `recipe: NAME` in it replaces the data set's own recipe."""
    content = read_yaml_file(path, "config file")
    if not isinstance(content, dict):
        raise UserError(f"config file {path!r} is not a table of settings")
    return parse_config(content, path)


def read_yaml_file(path: str, kind: str) -> Any:
    """Read a file that a user names; errors call it `kind`."""
    try:
        return parse_yaml(read_text(Path(path), SETTINGS))
    except FileNotFoundError:
        raise UserError(f"{kind} {path!r} does not exist") from None
    except OSError as error:
        raise UserError(f"{kind} {path!r} cannot be read: {error.strerror}") from None
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{kind} {path!r} is not YAML: {error}") from None


class _Loader(yaml.SafeLoader):
    """Plain values without aliases: a few lines of them can stand for gigabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not allowed")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        mapping = super().construct_mapping(node, deep)
        (key, times), *_ = Counter(str(key.value) for key, _ in node.value).most_common(1) or [("", 0)]
        if times > 1:
            raise yaml.YAMLError(f"{short(key)} is set twice")
        return mapping


@functools.lru_cache(maxsize=128)
def _load(text: str) -> Any:
    """Parse once: it takes 10 ms and a table or page of many runs reads each file several times."""
    return yaml.load(text, _Loader)  # a subclass of the safe loader


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML text; a mistake in it is a ValueError of one short line."""
    try:
        return copy.deepcopy(_load(text))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # the latter for dates and huge numbers
        raise ValueError(" ".join(str(error).split())[:300]) from None


def parse_config(content: Mapping[str, Any], where: str) -> ConfigFile:
    """Return the parts of a file's content; an unknown key is an error that suggests the nearest."""
    methods = content.get("methods") or {}
    if not isinstance(methods, dict) or not all(isinstance(value, dict) for value in methods.values()):
        raise UserError(f"methods in {where} is not a table of settings per method")
    for name in methods:
        known_methods.info(str(name))
    if isinstance(content.get("format"), int) and content["format"] > CONFIG_FORMAT:
        raise UserError(f"{where} was written by a newer version of sora (format {content['format']})")
    per_method = {str(name): flatten(values, where) for name, values in methods.items()}
    for name, values in per_method.items():
        for key in [key for key in ("method", "dataset", "seed", "out") if key in values]:
            raise UserError(f"{key} under methods: {name} in {where} would name another run; set it outside")
    recipe, origins = content.get("recipe"), content.get("origins")
    return ConfigFile(
        flatten(content, where),
        per_method,
        None if recipe is None else str(recipe),
        {str(name): str(origin) for name, origin in origins.items()} if isinstance(origins, dict) else {},
    )


def flatten(content: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return settings under their own names, from a grouped or a flat table."""
    values: dict[str, Any] = {}
    for key, value in content.items():
        if key in GROUPS:
            new = _group(str(key), value, where)
        elif key in field_names():
            new = {key: value}
        elif key in ABOUT:
            new = {}
        else:
            raise unknown(f"key in {where}", str(key), [*field_names(), *GROUPS, "recipe", "methods"])
        twice = [name for name in new if name in values]
        if twice:
            raise UserError(f"{twice[0]} is set twice in {where}")
        values |= new
    return values


def _group(name: str, value: Any, where: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise UserError(f"{name} in {where} is {short(value)}; expected a table of settings")
    allowed = [field.name for field in dataclasses.fields(GROUPS[name])]
    for key in value:
        if key not in allowed:
            raise unknown(f"key under {name} in {where}", str(key), allowed)
    return dict(value)


def to_yaml(settings: Settings, comments: Mapping[str, str] | None = None) -> str:
    """Return all settings by group, with a comment behind each value that has one."""
    flat, comments = settings.flat(), comments or {}
    lines: list[str] = []
    for group, cls in GROUPS.items():
        lines.append(f"{group}:")
        for name in (f.name for f in dataclasses.fields(cls)):
            value = flat[name]
            if isinstance(value, dict) and value:
                lines.append(f"  {name}:")
                for key, item in value.items():
                    lines.append(_line(4, key, item, comments.get(f"{name}.{key}", "")))
            else:
                lines.append(_line(2, name, value, comments.get(name, "")))
    return "\n".join(lines) + "\n"


def _line(indent: int, key: str, value: Any, comment: str) -> str:
    # In braces, which are removed again, a value stays on one line whatever it contains.
    text = yaml.safe_dump({key: value}, default_flow_style=True, width=10_000, allow_unicode=True)
    line = " " * indent + text.strip()[1:-1]
    return f"{line:<44}  # {comment}" if comment else line


def check_data_dir(dataset: str, data_dir: str | None, origin: str) -> None:
    """Raise if the user's own images might be packed in a folder that only a file names.

    Data sets with a name of their own are packed by `sora data get`; loading them only reads.
    """
    if data_dir is not None and not is_given(dataset) and data.info(dataset).argument:
        check_place("data_dir", data_dir, origin)


def data_dir_of_run(dataset: str, stored: str | None, given: str | None) -> str | None:
    """Return the folder of a stored run's data set: the one the user gives, else the run's own."""
    if given is None:
        check_data_dir(dataset, stored, "the run")
    return given or stored


def check_place(name: str, value: object, origin: str) -> None:
    """Raise for a folder to write to, outside the working directory, that only a file names."""
    if not isinstance(value, str) or not value:
        return  # no path, or a mistake that the types of the settings report
    try:
        place = absolute(value)
    except UserError as error:
        raise UserError(f"{name} ({origin}): {error}") from None
    if not place.is_relative_to(Path.cwd().resolve()):
        raise UserError(
            f"{name} {short(value)} ({origin}) is outside the working directory; to write there, repeat it: "
            f"--{name.replace('_', '-')} {short(value)}"
        )
