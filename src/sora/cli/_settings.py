"""The flags that are settings of a run: one group in the help per group of settings, and which were given."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

from sora.cli._parse import flag, option_flags, parse, parse_set
from sora.settings import GRID_CONFIG, GROUPS, Request, read_config_file

Extra = dict[str, tuple[Any, Any, str]]  # further flags of a verb: type, default, help

_SET = Annotated[
    tyro.conf.UseAppendAction[tuple[str, ...]],
    tyro.conf.arg(
        metavar="NAME=VALUE",
        help="a hyper-parameter, e.g. sora.alpha0=0.02 or model.stages=2; may be repeated",
        help_behavior_hint="",
    ),
]
_COMMON: Extra = {
    "config": (str | None, None, "YAML file with settings, grouped or flat; flags override it"),
    "recipe": (str | None, None, "recipe to start from; default: the one for the data set and network"),
    "resume": (
        Annotated[Literal["yes", "auto"] | None, tyro.conf.arg(metavar="[auto]")],
        None,
        "continue an unfinished run; `--resume auto` starts a new one if there is none",
    ),
    "dry_run": (bool, False, "print every setting with its origin and stop"),
    "quiet": (bool, False, "print nothing while working"),
    "json": (bool, False, "print the result as JSON"),
    "debug": (bool, False, "show where an error happened"),
}
_INTRO = (
    "A setting that is not given comes from --config, else from the recipe, else it has the default shown"
    " here; --dry-run prints every value with its origin."
)


@dataclass(frozen=True)
class RunFlags:
    """A verb's parsed command line: the settings that were given, and its other flags."""

    given: dict[str, Any]
    verb: Any
    resume: Literal["yes", "auto"] | None

    def request(self, **changes: Any) -> Request:
        """What the user asks for; `changes` count as given too."""
        file = self.verb.config
        if file is not None and os.environ.get(GRID_CONFIG) == file:  # the grid knows where values came from
            file = read_config_file(file)
        return Request({**self.given, **changes}, config=file, recipe=self.verb.recipe)


def parse_run_flags(
    argv: Sequence[str],
    verb: str,
    about: str,
    extra: Extra | None = None,
    *,
    without: tuple[str, ...] = (),
    texts: Mapping[str, str] | None = None,
) -> RunFlags:
    """Parse all settings and the verb's own flags.

    Args:
        argv: The arguments after the verb.
        verb: The verb, for the usage line.
        about: What the verb does.
        extra: Further flags of the verb.
        without: Settings that are not flags of the verb.
        texts: Help that replaces the text of a setting, by name.
    """
    fields: list[Any] = [flag(name, *rest) for name, rest in ((extra or {}) | _COMMON).items()]
    for group, cls in GROUPS.items():
        options = option_flags(cls, without, texts or {})
        if group == "threat":
            options.append(("set", _SET, dataclasses.field(default=())))
        part: Any = dataclasses.make_dataclass(group, options, frozen=True)
        part.__doc__ = cls.__doc__
        fields.append((group, part, dataclasses.field(default_factory=part)))
    spec: Any = dataclasses.make_dataclass("Flags", fields, frozen=True)
    spec.__doc__ = f"{about} {_INTRO}"
    flags = parse(spec, _with_resume_value(argv), verb)
    given = _given(argv)
    values = {
        field.name: getattr(getattr(flags, group), field.name)
        for group in GROUPS
        for field in dataclasses.fields(getattr(flags, group))
        if field.name in given
    }
    if "set" in values:
        values["set"] = parse_set(values["set"])
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0  # torchrun started us again
    return RunFlags(values, flags, flags.resume or ("auto" if restarted else None))


def _given(argv: Sequence[str]) -> set[str]:
    """The settings named on the command line: an explicit value counts also where it equals the default."""
    names = {token[2:].partition("=")[0].replace("-", "_") for token in argv if token.startswith("--")}
    return names | {name.removeprefix("no_") for name in names}


def _with_resume_value(argv: Sequence[str]) -> list[str]:
    """`--resume` alone means `--resume yes`."""
    tokens: list[str] = []
    for position, token in enumerate(argv):
        tokens.append(token)
        if token == "--resume" and list(argv[position + 1 : position + 2]) not in (["auto"], ["yes"]):
            tokens.append("yes")
    return tokens
