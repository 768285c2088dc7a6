"""`sora train`: one run."""

from __future__ import annotations

import json
import sys

from sora.cli._settings import parse_run_flags
from sora.cli._tables import print_summary
from sora.runs import RunFolder
from sora.runs.resume import settle
from sora.settings import Resolved, recipes
from sora.training import Hook, train
from sora.training.run import Run


def run(argv: list[str]) -> int:
    """Resolve the settings, train, print the summary."""
    flags = parse_run_flags(argv, "train", "Train one robust model.")
    resolved = settle(flags.request(), "dry run" if flags.verb.dry_run else flags.resume)
    if flags.verb.dry_run:
        print(resolved.described(), end="")
        return 0
    folder = RunFolder(resolved.settings.folder())
    if folder.is_finished():
        print(f"sora: the run in {folder.path} is finished; nothing to do", file=sys.stderr)
        return 0
    result = train(resolved, hooks=[PrintRecipe(resolved)], quiet=flags.verb.quiet)
    if flags.verb.json:
        print(json.dumps(folder.read_summary(), indent=2))
    elif not flags.verb.quiet:
        print_summary(result.summary, folder.path)
    return 0


class PrintRecipe(Hook):
    """Says which recipe is used, once everything that a user may have got wrong has been checked."""

    def __init__(self, resolved: Resolved) -> None:
        self.resolved = resolved

    def start(self, run: Run) -> None:
        """Print one line."""
        if self.resolved.recipes:
            run.console.say(recipe_line(self.resolved))


def recipe_line(resolved: Resolved) -> str:
    """The recipes in use; says so if they were made for another network than the one that is trained."""
    line = f"recipe: {' + '.join(resolved.recipes)}"
    networks = [recipes.read(name).values.get("model") for name in resolved.recipes]
    meant = next((model for model in reversed(networks) if model), resolved.settings.model)
    if meant == resolved.settings.model:
        return line
    hint = "; --recipe vit-adamw is for transformers" if resolved.settings.model.startswith("vit") else ""
    return f"{line} (made for {meant}, not for {resolved.settings.model}{hint})"
