"""Which checkpoint a run continues from, and why one cannot be used.

Nothing is changed here: a checkpoint that does not fit is passed over for an older one. If none fits, the run
is refused; it is never started anew over its existing files.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from sora.errors import RunError, UserError
from sora.runs.checkpoints import Content
from sora.runs.folder import LOGS, LogName, RunFolder
from sora.runs.logs import LogStart, intact_start
from sora.runs.provenance import settings_hash
from sora.settings import MAY_CHANGE, Settings, differences


@dataclass(frozen=True)
class Recovered:
    """A checkpoint to continue from."""

    path: Path
    tensors: dict[str, Tensor]
    header: dict[str, Any]
    logs: dict[LogName, LogStart]
    """What each log had when the checkpoint was written."""
    passed_over: list[str]
    """Newer checkpoints that cannot be used, and why."""


def recover(folder: RunFolder, settings: Settings) -> Recovered | None:
    """The newest usable checkpoint of a run; None if there is none and the run has to begin.

    Raises:
        UserError: The run in the folder has other settings.
        RunError: The run cannot be continued: its checkpoints or logs are damaged or missing.
    """
    refuse_other_settings(folder, differences(folder.read_config(), settings) if folder.exists() else [])
    failures: dict[Path, UserError | RunError] = {}
    for path in folder.checkpoints.candidates():
        try:
            tensors, header = read_own(folder, path, settings)
            logs = _intact_logs(folder, header)
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
    """The content of a checkpoint that was written with these settings, or before they were extended."""
    tensors, header = folder.checkpoints.read(path)
    fingerprint = settings_hash(settings)
    if header.get("fingerprint") == fingerprint or _is_of_shorter_run(header, settings):
        return tensors, header
    changed = differences(header["settings"], settings) if "settings" in header else []
    raise UserError(
        f"has other settings: {'; '.join(changed)}"
        if changed
        else f"has other settings: their hash is {header.get('fingerprint')} instead of {fingerprint}"
    )


def _is_of_shorter_run(header: dict[str, Any], settings: Settings) -> bool:
    """Whether a checkpoint differs only by fewer epochs, where their number does not affect it."""
    epochs = header.get("settings", {}).get("epochs")
    if not isinstance(epochs, int) or not 0 < epochs < settings.epochs or obstacle_to_extension(settings):
        return False
    shorter = replace(settings, epochs=epochs)
    return bool(header.get("fingerprint") == settings_hash(shorter))


def obstacle_to_extension(settings: Settings) -> str:
    """Why more epochs would have changed the steps already taken; empty if they would not."""
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


def refuse_other_settings(folder: RunFolder, changed: list[str]) -> None:
    """Raise if there are such differences between the run in the folder and what is asked for."""
    if changed:
        raise UserError(
            f"the run in {folder.path} has other settings: {'; '.join(changed)}"
            f" (only {', '.join(MAY_CHANGE)} may change when a run is resumed)"
        )


def _intact_logs(folder: RunFolder, header: dict[str, Any]) -> dict[LogName, LogStart]:
    digests = header.get("log_digests", {})
    return {
        name: intact_start(folder.log_path(name), header["logs"].get(name, 0), digests.get(name))
        for name in LOGS
    }


def _refusal(folder: RunFolder, failures: dict[Path, UserError | RunError]) -> UserError | RunError:
    """One line for all checkpoints that cannot be used."""
    by_reason: dict[str, list[str]] = {}
    for path, error in failures.items():
        by_reason.setdefault(str(error), []).append(path.name)
    reasons = "; ".join(f"{', '.join(names)} {reason}" for reason, names in by_reason.items())
    users = any(isinstance(error, UserError) for error in failures.values())
    return (UserError if users else RunError)(
        f"the run in {folder.path} cannot be continued, and nothing was changed: {reasons};"
        " restore the files or settings, or choose another --out"
    )
