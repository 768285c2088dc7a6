"""Flags from typed dataclasses by tyro, its error boxes turned into the one-line errors of this package."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

import tyro
from tyro import _errors as tyro_errors  # its hook is how a program takes over error messages

from sora._typed import Options, allowed_range
from sora.errors import UserError, not_allowed, short, unknown

T = TypeVar("T")
DEBUG = " --debug shows where an error happened."  # a flag of every verb, which the dispatcher takes


def parse(spec: type[T], argv: list[str], prog: str, default: T | None = None) -> T:
    """An instance of the dataclass `spec` from flags; a mistake is a `UserError`."""
    flags = [f"--{name.replace('_', '-')}" for name in _flag_names(spec)]
    _show_kinds(spec)

    def explain(event: tyro_errors.ParseErrorEvent) -> None:
        raise _explained(event, flags)

    with tyro_errors.on_parse_error(explain):
        config = (tyro.conf.OmitArgPrefixes,)  # groups structure the help, not the names of flags
        about = " ".join((spec.__doc__ or "").split()) + ("" if "--debug" in flags else DEBUG)
        options: Any = {"prog": f"sora {prog}", "description": about, "default": default, "config": config}
        return cast(T, tyro.cli(spec, args=argv, **options))


def changed(flags: Any, *names: str) -> list[str]:
    """Which of these flags differ from their defaults, as they are written."""
    given = [name for name in names if getattr(flags, name) != getattr(type(flags), name)]
    return [f"--{name.replace('_', '-')}" for name in given]


def _flag_names(spec: Any) -> list[str]:
    """The names flags have on the command line, which an annotation may set."""
    names: list[str] = []
    hints = get_type_hints(spec, include_extras=True)
    for field in dataclasses.fields(spec):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            names += _flag_names(hint)
        else:
            annotated = (getattr(annotation, "name", None) for annotation in get_args(hint)[1:])
            names.append(next(filter(None, annotated), field.name))
    return names


def _show_kinds(spec: Any) -> None:
    """Let the help of a dataclass show `--eps TEXT`, not `{None}|STR`, and a default only if there is one."""
    hints = get_type_hints(spec, include_extras=True)
    for field in dataclasses.fields(spec):
        if not dataclasses.is_dataclass(hints[field.name]):
            spec.__annotations__[field.name] = _shown(hints[field.name], field.default)


def _shown(hint: Any, default: Any, text: str | None = None, *, negated: bool = False) -> Any:
    """A flag's type with how the help shows it; a metavar of the flag's own annotation stays."""
    plain = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    [kind, *_] = [arg for arg in get_args(plain) if arg is not type(None)] or [plain]
    if get_origin(kind) is Literal:
        metavar: str | None = f"{{{','.join(get_args(kind))}}}"
    else:
        metavar = {str: "TEXT", int: "INT", float: "NUMBER"}.get(kind)
    own = [annotation.metavar for annotation in get_args(hint)[1:] if getattr(annotation, "metavar", None)]
    without = any(default is nothing for nothing in (None, False, dataclasses.MISSING)) or default in ("", ())
    arg = tyro.conf.arg(
        help=text,
        metavar=own[0] if own else metavar,
        help_behavior_hint="" if without else f"(default: {default})",
    )
    if plain is bool and not negated:
        return Annotated[hint, arg, tyro.conf.FlagCreatePairsOff]
    return Annotated[hint, arg]


def _explained(event: tyro_errors.ParseErrorEvent, flags: list[str]) -> UserError:
    match event:
        case tyro_errors.UnrecognizedArgs(tokens=[token, *_]):
            if token.startswith("-"):
                return unknown("flag", token.split("=")[0], flags)
            return UserError(f"unexpected argument {token!r}; see --help")
        case tyro_errors.InvalidChoice(argument=argument, value=value, choices=choices):
            return not_allowed(_name(argument), value, [each for each in choices if each != "None"])
        case tyro_errors.InstantiationFailure(message=message, argument=argument):
            wanted = {"int()": "a whole number", "float": "a number"}
            kind = next((text for word, text in wanted.items() if word in message), None)
            message = f"expected {kind}; got {message.rsplit(': ', 1)[-1]}" if kind else message
            return UserError(f"{_name(argument)}: {message}" if argument else message)
        case tyro_errors.BadValue(argument=argument):
            return UserError(f"{_name(argument)} needs a value")
        case tyro_errors.MissingArgs(missing_arguments=missing):
            return UserError(f"missing: {', '.join(_name(found.arg) for found in missing)}; see --help")
    return UserError("these arguments cannot be understood; see --help")


def _name(argument: Any) -> str:
    return str(argument.display_name())


def option_flags(options: type[Options], without: tuple[str, ...], texts: Mapping[str, str]) -> list[Any]:
    """Fields for `dataclasses.make_dataclass`: one flag per option, except those in `without`.

    Lists are written as text (`x,y`); the option set converts and checks them. `texts` replaces help.
    """
    hints = get_type_hints(options)
    flags = []
    for field in dataclasses.fields(options):
        if field.name in without or field.name == "set":
            continue
        default = field.default
        if isinstance(default, (list, tuple)):
            default = ",".join(map(str, default))
        allowed = allowed_range(field.metadata)
        text = texts.get(field.name, field.metadata["help"]) + (f" ({allowed})" if allowed else "")
        kind = _shown(_flag_type(hints[field.name]), default, text, negated=True)
        flags.append((field.name, kind, dataclasses.field(default=default)))
    return flags


def flag(name: str, kind: Any, default: Any, text: str) -> tuple[str, Any, Any]:
    """One field for `dataclasses.make_dataclass`; a flag without a default is not shown with one."""
    return name, _shown(kind, default, text), dataclasses.field(default=default)


def _flag_type(hint: Any) -> Any:
    """The type a flag is parsed with; whatever is no plain value is text."""
    kinds = [arg for arg in get_args(hint) if arg is not type(None)] or [hint]
    optional = type(None) in get_args(hint)
    if get_origin(hint) is Literal:
        return hint
    kind = kinds[0] if get_origin(hint) is not tuple and kinds[0] in (int, float, bool) else str
    return kind | None if optional else kind


def parse_set(items: tuple[str, ...]) -> dict[str, Any]:
    """`("sora.alpha0=0.02", ...)` as a table."""
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
