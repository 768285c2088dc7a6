"""Flags of the verbs: each is a field of a dataclass; tyro parses the command line and prints the help.

tyro is given optional text for every flag, so that a flag that was not given is None. The text is converted
by `sora._typed.coerce`, whose one-line errors are those of settings from files and of keyword arguments.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import tyro

from sora._files import plain
from sora._typed import allowed_range, coerce
from sora.errors import UserError, short, unknown

T = TypeVar("T")
DATA_DIR = "folder of the data sets; default: $SORA_DATA, else the user's cache"
_DEBUG = "--debug shows where an error happened."  # a flag of every verb, which the dispatcher takes


def flag(default: Any, help: str, **shown: Any) -> Any:
    """Declare a flag: a field of a dataclass, with the type that its value is converted to.

    A `Sequence[str]` may be repeated; so may a `dict`, which is written as `NAME=VALUE`. `metavar` names the
    value in the help; `alone` is the value if none follows it. With `positional=True` it is an argument
    without a name, required unless its metavar is in brackets.
    """
    return dataclasses.field(default=default, metadata={"help": help, **shown})


def parse(spec: type[T], argv: Sequence[str], verb: str) -> T:
    """Return the flags that the dataclass `spec` declares; a mistake is a `UserError`."""
    return spec(**_given(argv, verb, spec, _flags(spec), {}))


def parse_with_settings(
    spec: type[T], argv: Sequence[str], verb: str, without: Sequence[str] = (), **texts: str
) -> tuple[T, dict[str, Any]]:
    """Return the verb's own flags, which `spec` declares, and the settings that were given.

    `without` names settings that are not flags of this verb; `texts` replace the help of some.
    """
    from sora.settings import GROUPS

    own, groups = _flags(spec), {}
    for name, group in GROUPS.items():
        flags = [each for each in _flags(group, pairs=True) if each.name not in without]
        for each in flags:
            each.help = texts.get(each.name, each.help)
        groups[name] = group.__doc__, flags
    given = _given(argv, verb, spec, own, groups)
    return spec(**{each.name: given.pop(each.name) for each in own if each.name in given}), given


def changed(flags: Any, *names: str) -> list[str]:
    """Return which of these flags differ from their defaults, as they are written."""
    return [_written(name) for name in names if getattr(flags, name) != getattr(type(flags), name)]


def print_json(value: Any) -> None:
    """Print what `--json` asks for; NaN and infinity become null."""
    print(json.dumps(plain(value), indent=2, default=str))


def parse_set(items: Sequence[str]) -> dict[str, Any]:
    """Return `("sora.alpha0=0.02", ...)` as a table."""
    from sora.settings.files import parse_yaml

    table = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise UserError(f"--set takes NAME=VALUE, e.g. sora.alpha0=0.02; got {item!r}")
        try:
            table[key] = parse_yaml(value)
        except ValueError as error:
            raise UserError(f"--set {key}: {short(value)} is not a value: {error}") from None
    return table


def _given(
    argv: Sequence[str],
    verb: str,
    spec: type,
    own: list[_Flag],
    groups: Mapping[str, tuple[str | None, list[_Flag]]],
) -> dict[str, Any]:
    """Return the values that were given, by the names of their fields; or print the help and exit."""
    fields: list[Any] = [each.field() for each in own]
    for name, (about, flags) in groups.items():
        part: Any = dataclasses.make_dataclass(name, [each.field() for each in flags])
        part.__doc__ = about
        fields.append((name, part, dataclasses.field(default_factory=part)))
    offered: Any = dataclasses.make_dataclass("Flags", fields)
    try:
        with contextlib.redirect_stderr(io.StringIO()) as printed:
            found, rest = tyro.cli(
                offered,
                args=argv,
                prog=f"sora {verb}",
                description=" ".join([*(spec.__doc__ or "").split(), _DEBUG]),
                # Groups structure the help, not the names of flags; None means that a flag was not given; the
                # help is given, so no source text needs to be searched for it.
                config=(
                    tyro.conf.OmitArgPrefixes,
                    tyro.conf.DisallowNone,
                    tyro.conf.HelptextFromCommentsOff,
                ),
                return_unknown_args=True,
            )
    except SystemExit as ended:
        if not ended.code:
            raise  # after the help
        # Everything is optional text, so the only mistake that tyro can find is a missing value.
        named = re.search(r"--[a-z][\w-]*", printed.getvalue())
        raise UserError(f"{named[0] if named else 'the last flag'} needs a value") from None
    declared = [*own, *(each for _, flags in groups.values() for each in flags)]
    if rest and rest[0].startswith("-"):
        names = [each.written for each in declared if each.written.startswith("-")]
        raise unknown("flag", rest[0].split("=")[0], names, see=f"see sora {verb} --help")
    if rest:
        raise UserError(f"unexpected argument {rest[0]!r}; see --help")
    texts = dict(vars(found))
    for name in groups:
        texts |= vars(texts.pop(name))
    missing = [each.shown["metavar"] for each in declared if each.required and not texts[each.name]]
    if missing:
        raise UserError(f"missing: {', '.join(missing)}; see --help")
    return {each.name: each.value(texts[each.name]) for each in declared if texts[each.name] != each.absent}


def _flags(spec: Any, *, pairs: bool = False) -> list[_Flag]:
    """Return the flags that a dataclass declares."""
    hints = get_type_hints(spec)
    return [_Flag(field, hints[field.name], pairs) for field in dataclasses.fields(spec)]


def _written(name: str) -> str:
    return f"--{name.rstrip('_').replace('_', '-')}"  # `from_` is --from; the name itself is a keyword


class _Flag:
    """One flag or positional argument; with `pairs` also `--no-NAME`, for a value that a file may set."""

    def __init__(self, field: dataclasses.Field[Any], hint: Any, pairs: bool) -> None:
        self.name, self.default, self.hint, self.pairs = field.name, field.default, hint, pairs
        self.shown: Mapping[str, Any] = field.metadata
        allowed, kinds = allowed_range(self.shown), get_args(hint)
        self.help = self.shown["help"] + (f" ({allowed})" if allowed else "")
        self.kind: Any = kinds[0] if type(None) in kinds else hint  # the type, apart from None
        self.several = get_origin(self.kind) in (dict, Sequence)  # whether it may be repeated
        self.absent: Any = () if self.several else None  # its value if it is not given
        self.written = self.name if self.shown.get("positional") else _written(self.name)  # in errors
        self.required = "positional" in self.shown and not self.shown["metavar"].startswith("[")

    def field(self) -> tuple[str, Any, Any]:
        """Return the field that tyro is given: optional text, or an optional switch."""
        kind: Any = bool | None if self.kind is bool else str | None
        if "alone" in self.shown:
            kind = tuple[str, ...] | None
        default = ",".join(map(str, self.default)) if isinstance(self.default, tuple) else self.default
        hint = "" if default is None or default is False or default == "" else f"(default: {default})"
        if self.several:
            kind, hint = tyro.conf.UseAppendAction[tuple[str, ...]], ""
        if self.shown.get("positional"):
            kind = Annotated[kind, tyro.conf.Positional]
        if not self.pairs:
            kind = Annotated[kind, tyro.conf.FlagCreatePairsOff]
        about = tyro.conf.arg(
            name=self.name.rstrip("_"),
            metavar=self.shown.get("metavar") or self._metavar(),
            help=self.help,
            help_behavior_hint="(required)" if self.required and not self.several else hint,
        )
        return self.name, Annotated[kind, about], dataclasses.field(default=self.absent)

    def _metavar(self) -> str | None:
        if get_origin(self.kind) is Literal:
            return f"{{{','.join(get_args(self.kind))}}}"
        if get_origin(self.kind) is dict:
            return "NAME=VALUE"
        return {int: "INT", float: "NUMBER", bool: None}.get(self.kind, "TEXT")

    def value(self, given: Any) -> Any:
        """Return the value that the given text stands for."""
        if get_origin(self.kind) is dict:
            return parse_set(given)
        if "alone" in self.shown:
            given = " ".join(given) or self.shown["alone"]
        return given if self.several else coerce(self.written, given, self.hint)
