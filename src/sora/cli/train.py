"""`sora train`: one run."""

from __future__ import annotations

import contextlib
import json
import sys

from sora._devices import launched_rank
from sora._files import plain
from sora._process import end_with_parent
from sora.cli._settings import Extra, parse_run_flags
from sora.errors import UserError
from sora.runs import RunFolder
from sora.runs.resume import settings_of_run

EXTRA: Extra = {
    "allow_world_change": (
        bool,
        False,
        "resume with a different number of processes; the result then differs",
    ),
}


def run(argv: list[str]) -> int:
    """Resolve the settings, train, print the summary."""
    end_with_parent()
    flags = parse_run_flags(argv, "train", "Train one robust model.", EXTRA)
    resolved = settings_of_run(flags.request(), flags.resume, dry_run=flags.verb.dry_run)
    if flags.verb.dry_run:
        as_json = flags.verb.json
        print(json.dumps(plain(resolved.record()), indent=2) if as_json else resolved.described().rstrip())
        return 0
    folder = RunFolder(resolved.settings.folder())
    if folder.is_finished():
        print(f"sora: the run in {folder.path} is finished; nothing to do", file=sys.stderr)
        with contextlib.suppress(OSError, UserError), folder.lock():  # it may be read-only or in use
            folder.remove_leftovers()  # of a kill right after the last file
        if flags.verb.json:
            print(json.dumps(folder.read_summary(), indent=2))
        return 0
    from sora.cli._evaluate_tables import print_result
    from sora.training import train

    world_change = flags.verb.allow_world_change
    result = train(resolved, quiet=flags.verb.quiet, allow_world_change=world_change)
    if launched_rank() > 0:
        return 0
    if flags.verb.json:
        print(json.dumps(folder.read_summary(), indent=2))
    elif not flags.verb.quiet:
        print_result(result, folder.path)
    return 0
