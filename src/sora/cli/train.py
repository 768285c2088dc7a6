"""`sora train`: one run."""

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from sora._process import end_with_parent
from sora.cli._flags import SettingsFlags
from sora.cli._parse import flag, parse_with_settings, print_json
from sora.errors import UserError


@dataclass(frozen=True)
class Flags(SettingsFlags):
    """Train one robust model.

    A setting that is not given comes from --config, else from the recipe, else it has the default shown here;
    --dry-run prints every value with its origin.
    """

    allow_world_change: bool = flag(
        False, "resume with a different number of processes; the result then differs"
    )
    hook: Sequence[str] = flag(
        (),
        "package.module:Class, a subclass of sora.training.Hook of your own, called around every step; may be"
        " repeated, and must be given again with --resume",
        metavar="MODULE:CLASS",
    )


def run(argv: list[str]) -> int:
    """Resolve the settings, train, print the summary."""
    end_with_parent()
    flags, given = parse_with_settings(Flags, argv, "train")
    # Here and not above: the help does not wait for torch.
    from sora._devices import launched_rank
    from sora.runs import RunFolder
    from sora.runs.resume import settings_of_run

    resolved = settings_of_run(flags.request(given), flags.resuming(), dry_run=flags.dry_run)
    if flags.dry_run:
        if flags.json:
            print_json(resolved.record())
        else:
            print(resolved.described().rstrip())
        return 0
    folder = RunFolder(resolved.settings.folder())
    if folder.is_finished():
        print(f"sora: the run in {folder.path} is finished; nothing to do", file=sys.stderr)
        with contextlib.suppress(OSError, UserError), folder.lock():  # it may be read-only or in use
            folder.remove_leftovers()  # of a kill right after the last file
        if flags.json:
            print_json(folder.read_summary())
        return 0
    from sora.cli._evaluate_tables import print_result
    from sora.training import train
    from sora.training.hooks import load_hook

    hooks = [load_hook(name) for name in flags.hook]
    result = train(resolved, hooks=hooks, quiet=flags.quiet, allow_world_change=flags.allow_world_change)
    if launched_rank() > 0:
        return 0
    if flags.json:
        print_json(folder.read_summary())
    elif not flags.quiet:
        print_result(result, folder.path)
    return 0
