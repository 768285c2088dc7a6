"""The flags of verbs that train: the settings of a run, and where they come from."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sora.cli._parse import flag
from sora.settings import GRID_CONFIG, Request, read_config_file


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
