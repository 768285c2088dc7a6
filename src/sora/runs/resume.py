"""Whether a run is new or resumed, and its settings in either case."""

from __future__ import annotations

import dataclasses
from typing import Literal

from sora.errors import UserError
from sora.runs.folder import RunFolder
from sora.settings import MAY_CHANGE, Request, Resolved, differences

Resume = Literal["yes", "auto", "dry run"] | None


def settle(request: Request, resume: Resume) -> Resolved:
    """The settings of the run that a request starts or continues.

    Args:
        request: What the user asks for.
        resume: None: the folder must be free; `yes`: it must hold a run; `auto`: either; `dry run`: nothing
            will be trained, so it may hold anything.
    """
    folder = RunFolder(request.path())
    if not folder.exists():
        resolved = request.resolve()
        if resume == "yes":
            raise UserError(
                f"there is no run in {folder.path} to resume; leave out --resume or use --resume auto"
            )
        return resolved
    if resume in (None, "dry run"):
        resolved = request.resolve()  # mistakes in the request are reported before a used folder is
        if resume is None:
            raise UserError(
                f"{folder.path} already holds a run; continue it with --resume or choose another --out"
            )
        return resolved
    stored = folder.read_config()
    resolved = request.resolve(stored)
    changed = differences(stored, resolved.settings)
    if changed:
        raise UserError(
            f"the run in {folder.path} has other settings: {'; '.join(changed)}"
            f" (only {', '.join(MAY_CHANGE)} may change when a run is resumed)"
        )
    # A run that was moved continues where it is now, not where it was started.
    settings = dataclasses.replace(resolved.settings, out=str(folder.path))
    return dataclasses.replace(resolved, settings=settings)
