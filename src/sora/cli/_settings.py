"""The flags of verbs that train: the settings of a run, and where they come from."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from sora.cli._parse import flag, parse_with_settings
from sora.settings import GRID_CONFIG, GROUPS, Request, read_config_file

T = TypeVar("T", bound="SettingsFlags")


@dataclass(frozen=True)
class SettingsFlags:
    """The flags that every verb with settings has."""

    config: str | None = flag(None, "YAML file with settings, grouped or flat; flags override it")
    recipe: str | None = flag(None, "recipe to start from; default: the one for the data set and network")
    resume: Literal["yes", "auto"] | None = flag(
        None,
        "continue an unfinished run; `--resume auto` starts a new one if there is none",
        metavar="[auto]",
        alone="yes",
    )
    dry_run: bool = flag(False, "print every setting with its origin and stop")
    quiet: bool = flag(False, "print nothing while working")
    json: bool = flag(False, "print the result as JSON")

    def request(self, given: Mapping[str, Any]) -> Request:
        """Return what the user asks for, with the settings that were given."""
        file = self.config
        if file is not None and os.environ.get(GRID_CONFIG) == file:  # the grid knows where values came from
            return Request(given, config=read_config_file(file), recipe=self.recipe)
        return Request(given, config=file, recipe=self.recipe)

    def resuming(self) -> Literal["yes", "auto"] | None:
        """Return --resume, which is `auto` if torchrun has started this process again."""
        restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
        return self.resume or ("auto" if restarted else None)


def parse_settings(
    spec: type[T], argv: Sequence[str], verb: str, without: Sequence[str] = (), **texts: str
) -> tuple[T, dict[str, Any]]:
    """Return a verb's own flags and the settings that were given; see `parse_with_settings`."""
    return parse_with_settings(spec, argv, verb, GROUPS, without, texts)
