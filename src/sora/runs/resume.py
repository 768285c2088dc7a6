"""Whether a run is new or resumed, and its settings in either case."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any, Literal

from sora._devices import launched_rank, pick_device
from sora.errors import RunError, UserError
from sora.runs.data import load_data
from sora.runs.folder import RunFolder
from sora.runs.recovery import obstacle_to_extension, recover, refuse_other_settings
from sora.settings import Request, Resolved, Settings, differences, is_given
from sora.settings.files import parse_config

Resume = Literal["yes", "auto"] | None


def settings_of_run(request: Request, resume: Resume, *, dry_run: bool = False) -> Resolved:
    """The settings of the run that a request starts or continues.

    Args:
        request: What the user asks for.
        resume: None: the folder must be free; `yes`: it must hold a run; `auto`: either.
        dry_run: Nothing will be trained, so the folder need not be free.
    """
    folder = RunFolder(request.path())
    if not folder.exists():
        resolved = request.resolve()
        if resume == "yes":
            raise UserError(
                f"there is no run in {folder.path} to resume; leave out --resume or use --resume auto"
            )
        return resolved
    if resume is None:
        resolved = request.resolve()  # mistakes in the request are reported before a used folder is
        if not dry_run:
            raise UserError(
                f"{folder.path} already holds a run; continue it with --resume or choose another --out"
            )
        return resolved
    stored = folder.read_config()
    resolved = request.resolve(stored)
    longer = more_epochs(stored, resolved.settings)
    changed = differences(stored, resolved.settings)
    if longer and len(changed) == 1:
        check_extendable(resolved.settings, longer)
        if not dry_run:
            extend(folder, resolved)
    else:
        refuse_other_settings(folder, changed)
    # A run that was moved continues where it is now, not where it was started.
    settings = dataclasses.replace(resolved.settings, out=str(folder.path))
    return dataclasses.replace(resolved, settings=settings)


def more_epochs(stored: Mapping[str, Any], settings: Settings) -> int:
    """By how many epochs a request exceeds the stored run; 0 if it does not."""
    before = parse_config(stored, "config.yaml").values.get("epochs")
    return max(0, settings.epochs - before) if isinstance(before, int) else 0  # the file may be damaged


def check_extendable(settings: Settings, longer: int) -> None:
    """Raise if more epochs would have changed the steps already taken."""
    reason = obstacle_to_extension(settings)
    if reason:
        raise UserError(
            f"epochs {settings.epochs - longer} -> {settings.epochs}: {reason}; start a new run, with --init"
            " to begin from the weights of this one"
        )


def extend(folder: RunFolder, resolved: Resolved) -> None:
    """Make a run longer: it continues from its newest checkpoint, as if it had been started that way.

    The first of several processes does it, the others wait. The settings are written last, so that a kill
    leaves an unfinished run of the old length.
    """
    if launched_rank() > 0:
        while more_epochs(folder.read_config(), resolved.settings):
            time.sleep(0.1)
        return
    with folder.lock():
        stored = folder.read_config()
        if not more_epochs(stored, resolved.settings):
            return  # another process has done it until now
        before = folder.read_settings()
        # A mistake is reported before the result of the shorter run is given up.
        pick_device(resolved.settings.device)
        if not is_given(before.dataset):
            load_data(folder, before)
        if recover(folder, before) is None:
            raise RunError(f"the run in {folder.path} has no checkpoint to continue from")
        settings = dataclasses.replace(before, epochs=resolved.settings.epochs)
        folder.reopen()
        folder.write_config(dataclasses.replace(resolved, settings=settings).stored(stored))
