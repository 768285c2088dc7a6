"""Whether a run is new or resumed, its settings in either case, and the checkpoint it continues from.

A checkpoint that does not fit is passed over for an older one. If none fits, the run is refused; it is never
started anew over its existing files.
"""

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from sora._devices import launched_rank, pick_device
from sora.errors import RunError, UserError
from sora.runs.checkpoints import Content
from sora.runs.folder import RunFolder
from sora.runs.logs import LOGS, LogName, LogStart, intact_start
from sora.runs.models import load_data
from sora.settings import MAY_CHANGE, Request, Resolved, Settings, differences, is_given
from sora.settings.files import parse_config

Resume = Literal["yes", "auto"] | None
# Settings that are newer than the hashes of existing runs: they are hashed only where they differ from this.
ADDED = {"keep": "last", "smoothing": 0.0, "smoothing_kind": "uniform", "smooth_attack": True}
ADDED |= {"ema_buffers": "copy", "image_sizes": []}


def settings_hash(settings: Settings) -> str:
    """Return a short name for all settings that decide the numbers; other settings have another one."""
    values = {key: value for key, value in settings.flat().items() if key not in MAY_CHANGE}
    values = {key: value for key, value in values.items() if key not in ADDED or value != ADDED[key]}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def settings_of_run(request: Request, resume: Resume, *, dry_run: bool = False) -> Resolved:
    """Return the settings of the run that a request starts or continues.

    If `resume` is None, the folder must be free (unless nothing will be trained); if `yes`, it must hold
    a run; `auto`: either.
    """
    folder = RunFolder(request.path())
    if not folder.exists() or resume is None:
        resolved = request.resolve()  # mistakes in the request are reported before a used folder is
        if resume == "yes":
            raise UserError(
                f"there is no run in {folder.path} to resume; leave out --resume or use --resume auto"
            )
        if folder.exists() and not dry_run:
            raise UserError(
                f"{folder.path} already holds a run; continue it with --resume or choose another --out"
            )
        return resolved
    stored = folder.read_config()
    resolved = request.resolve(stored)
    longer = more_epochs(stored, resolved.settings)
    changed = differences(stored, resolved.settings)
    if longer and len(changed) == 1:
        reason = obstacle_to_extension(resolved.settings)
        if reason:
            epochs = resolved.settings.epochs
            raise UserError(
                f"epochs {epochs - longer} -> {epochs}: {reason}; start a new run, with --init to begin from"
                " the weights of this one"
            )
        if not dry_run:
            extend(folder, resolved)
    else:
        refuse_other_settings(folder, changed)
    # A run that was moved continues where it is now, not where it was started.
    return replace(resolved, settings=replace(resolved.settings, out=str(folder.path)))


def more_epochs(stored: Mapping[str, Any], settings: Settings) -> int:
    """Return by how many epochs a request exceeds the stored run; 0 if it does not."""
    before = parse_config(stored, "config.yaml").values.get("epochs")
    return max(0, settings.epochs - before) if isinstance(before, int) else 0  # the file may be damaged


def obstacle_to_extension(settings: Settings) -> str:
    """Say why more epochs would have changed the steps already taken; empty if they would not."""
    if settings.schedule != "multistep":
        return f"the {settings.schedule} learning rate of past steps depends on the number of epochs"
    if settings.milestones:
        return "milestones are fractions of the number of epochs"
    if settings.method_uses_epochs():
        return f"{settings.method} depends on the number of epochs"
    if settings.guard in ("stop", "rollback"):
        return f"guard {settings.guard} keeps states of the shorter run"
    if settings.keep != "last":
        return f"keep {settings.keep} keeps the weights of an epoch of the shorter run"
    return ""


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
            return  # another process did it while this one waited for the lock
        before = folder.read_settings()
        # A mistake is reported before the result of the shorter run is given up.
        pick_device(resolved.settings.device)
        if not is_given(before.dataset):
            load_data(folder, before)
        if recover(folder, before) is None:
            raise RunError(f"the run in {folder.path} has no checkpoint to continue from")
        settings = replace(before, epochs=resolved.settings.epochs)
        folder.reopen()
        folder.write_config(replace(resolved, settings=settings).stored(stored))


def refuse_other_settings(folder: RunFolder, changed: list[str]) -> None:
    """Raise if there are such differences between the run in the folder and what is asked for."""
    if changed:
        raise UserError(
            f"the run in {folder.path} has other settings: {'; '.join(changed)}"
            f" (only {', '.join(MAY_CHANGE)} may change when a run is resumed)"
        )


@dataclass(frozen=True)
class Recovered:
    """A checkpoint to continue from."""

    path: Path
    tensors: dict[str, Tensor]
    header: dict[str, Any]
    logs: dict[LogName, LogStart]  # what each log had when the checkpoint was written
    passed_over: list[str]  # newer checkpoints that cannot be used, and why


def recover(folder: RunFolder, settings: Settings) -> Recovered | None:
    """Read the newest usable checkpoint of a run; None if there is none and the run has to begin.

    Nothing is changed. Other settings than the run's are a `UserError`, damaged or missing checkpoints and
    logs a `RunError`.
    """
    refuse_other_settings(folder, differences(folder.read_config(), settings) if folder.exists() else [])
    failures: dict[Path, UserError | RunError] = {}
    for path in folder.checkpoints.candidates():
        try:
            tensors, header = read_own(folder, path, settings)
            lengths, digests = header.get("logs", {}), header.get("log_digests", {})
            logs = {
                name: intact_start(folder.log_path(name), lengths.get(name, 0), digests.get(name, ""))
                for name in LOGS
            }
        except (UserError, RunError) as error:
            failures[path] = error
            continue
        passed_over = [f"checkpoint {failed.name} {error}" for failed, error in failures.items()]
        return Recovered(path, tensors, header, logs, passed_over)
    if failures:
        raise _refusal(folder, failures)
    last = folder.last_line("metrics") or {}
    if last.get("epoch", 1) > 1:  # the first epoch ends with a checkpoint
        raise RunError(
            f"the run in {folder.path} cannot be continued: it has lines of epoch {last['epoch']} in its log,"
            " but no checkpoint; put the checkpoints back or choose another --out"
        )
    return None


def read_own(folder: RunFolder, path: Path, settings: Settings) -> Content:
    """Read a checkpoint that was written with these settings, or before they were extended."""
    tensors, header = folder.checkpoints.read(path)
    stored = header.get("settings", {})
    before = stored.get("epochs")
    accepted = [settings]
    if isinstance(before, int) and 0 < before < settings.epochs and not obstacle_to_extension(settings):
        accepted.append(replace(settings, epochs=before))
    if header.get("fingerprint") not in [settings_hash(each) for each in accepted]:
        changed = "; ".join(differences(stored, settings)) or "their hash differs"
        raise UserError(f"has other settings: {changed}")
    return tensors, header


def _refusal(folder: RunFolder, failures: dict[Path, UserError | RunError]) -> UserError | RunError:
    """Return one line for all checkpoints that cannot be used."""
    by_reason: dict[str, list[str]] = {}
    for path, error in failures.items():
        by_reason.setdefault(str(error), []).append(path.name)
    reasons = "; ".join(f"{', '.join(names)} {reason}" for reason, names in by_reason.items())
    users = any(isinstance(error, UserError) for error in failures.values())
    return (UserError if users else RunError)(
        f"the run in {folder.path} cannot be continued, and nothing was changed: {reasons};"
        " restore the files or settings, or choose another --out"
    )
