"""Results of probes for figures: taken from the run folders if they were measured before."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from sora import probes
from sora._files import plain
from sora.errors import UserError
from sora.probes import Result, SubjectOptions, file_title, load_subject
from sora.report.reading import is_outdated
from sora.runs import RunFolder


def result_of(
    name: str, run: RunFolder, options: SubjectOptions, variant: str = "", **probe_options: Any
) -> Result:
    """What a probe measured in a run; measured and stored now if it was not, or of other weights.

    Args:
        name: The probe.
        run: The run folder.
        options: Which weights and images.
        variant: Sets results with other options of the probe apart.
        probe_options: Options of the probe.
    """
    entry = probes.info(name)
    title = file_title(entry, options) + (f"-{variant}" if variant else "")
    stored = run.read_probe(title)
    if stored is None or is_outdated(stored, run.digest_of_weights):
        probe = probes.create(name, **probe_options)
        stored = plain(probe.measure(load_subject(run, entry.images, options)))
        run.write_probe(title, {"probe": name, "run": run.name, "at": options.step, **stored})
    return stored


def moments(run: RunFolder) -> list[int]:
    """Steps of snapshots that show a collapse: halfway to the first alarm, just before it, and at the end.

    The first weights of a run have hardly learned anything, so they are not chosen if there are others.
    """
    steps = list(run.snapshots.files())
    if len(steps) < 3:
        raise UserError(f"{run.path} has {len(steps)} snapshots; the figure needs 3, see --at")
    alarms = [row["step"] for row in run.read_log("events") if row.get("event") == "alarm"]
    before = [step for step in steps[1:-1] if alarms and step < alarms[0]]
    middle = before[-1] if before else steps[len(steps) // 2]
    early = [step for step in steps if step <= middle / 2] or steps
    return [early[-1] if early[-1] < middle else steps[0], middle, steps[-1]]


def at_steps(
    name: str, run: RunFolder, steps: Sequence[int], options: SubjectOptions, **probe_options: Any
) -> dict[str, Result]:
    """A probe's results at several snapshots of one run, by step."""
    return {
        f"step {step}": result_of(name, run, dataclasses.replace(options, step=step), **probe_options)
        for step in steps
    }
