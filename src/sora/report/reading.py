"""Everything the files of a run hold, read so that one missing or damaged file costs only what it holds."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from sora.errors import RunError, UserError
from sora.evaluation.records import with_later_results
from sora.probes import Result
from sora.runs import LOGS, RunFolder, find_runs, unique_labels

Rows = list[dict[str, Any]]
# What reading or drawing a file of an unexpected shape may raise: the page is written without that part.
DAMAGE = (RunError, UserError, OSError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
# What the page shows if it was measured.
PROBES = {"eps-curve": "eps curve", "landscape": "loss landscape", "samples": "attacked images"}


@dataclass(frozen=True)
class Missing:
    """Something the page does not show, and the command that would make it."""

    what: str
    command: str = ""


@dataclass
class RunRecord:
    """One run, as far as its files can be read.

    Attributes:
        folder: The run folder.
        label: Its name in the page.
        config: `config.yaml`.
        summary: `summary.json` with later evaluations; empty for a run that has not finished.
        logs: The rows of each log.
        probes: What `sora probe` measured.
        missing: What is not there.
    """

    folder: RunFolder
    label: str
    config: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)
    logs: dict[str, Rows] = field(default_factory=dict)
    probes: dict[str, Result] = field(default_factory=dict)
    missing: list[Missing] = field(default_factory=list)

    def attempt(self, what: str, action: Callable[[], Any], otherwise: Any = None) -> Any:
        """The result of `action`; if the files do not allow it, that is noted."""
        try:
            return action()
        except DAMAGE as error:
            reason = str(error) if isinstance(error, (RunError, UserError)) else type(error).__name__
            self.missing.append(Missing(f"{what} cannot be shown: {reason[:300]}"))
            return otherwise

    @property
    def path(self) -> str:
        """The folder as a word of a shell command."""
        return shlex.quote(str(self.folder.path))


def read_runs(paths: Iterable[str | Path]) -> list[RunRecord]:
    """Read all runs at and below the paths, each under a label of its own."""
    folders = find_runs(paths)
    return [_read_run(*pair) for pair in zip(folders, unique_labels(folders), strict=True)]


def _read_run(folder: RunFolder, label: str) -> RunRecord:
    """Read a run; what is missing is noted with the command that makes it."""
    run = RunRecord(folder, label)
    run.config = run.attempt("settings", folder.read_config, {})
    for log in LOGS:
        run.logs[log] = run.attempt(f"{log}.jsonl", partial(folder.read_log, log), [])
    if folder.is_finished():
        run.summary = run.attempt("summary.json", lambda: _summary(folder), {})
        run.missing += _not_evaluated(run)
    else:
        command = f"sora train --config {run.path}/config.yaml --out {run.path} --resume auto"
        run.missing.append(Missing("The run has not finished.", command))
    digest_of = cache(folder.digest_of_weights)  # all probes are of the same weights
    for name, what in PROBES.items():
        read = partial(_probe, folder, name, digest_of)
        result, outdated = run.attempt(f"probes/{name}.json", read, (None, False))
        if result is not None and not outdated:
            run.probes[name] = result
        elif folder.has_model():
            reason = " of these weights; the stored result is of earlier ones" if outdated else ""
            run.missing.append(Missing(f"No {what}{reason}.", f"sora probe {name} {run.path}"))
    return run


def is_outdated(result: Result, digest_of: Callable[[Any], str | None]) -> bool:
    """Whether the weights have changed since a probe measured them; older versions stored no checksum.

    Args:
        result: What is stored of the probe.
        digest_of: From the step of a snapshot, or None, to the checksum of its weights.
    """
    digest = result.get("weights_blake2b")
    return digest is not None and digest != digest_of(result.get("at"))


def _probe(
    folder: RunFolder, name: str, digest_of: Callable[[Any], str | None]
) -> tuple[Result | None, bool]:
    """What a probe measured, if it did, and whether the weights have changed since."""
    result = folder.read_probe(name)
    return result, result is not None and is_outdated(result, digest_of)


def watched_images(rows: Iterable[Mapping[str, Any]]) -> str:
    """Which images the accuracies in lines of `evals` belong to: without held-out ones, training images."""
    kinds = {"training" if row.get("split") == "training" else "held-out" for row in rows}
    return f"{' or '.join(sorted(kinds)) or 'held-out'} images"


def _not_evaluated(run: RunRecord) -> list[Missing]:
    """The evaluations that a finished run went without."""
    missing = []
    if run.summary and not {"fgsm", "pgd10"} <= set(run.summary.get("accuracy") or ()):
        command = f"sora evaluate {run.path} --attacks clean,fgsm,pgd10"
        missing.append(Missing("No accuracy under FGSM and PGD-10, and so no verdict.", command))
    if not run.logs["evals"]:
        again = shlex.quote(f"{run.folder.path}-evaluated")
        command = f"sora train --config {run.path}/config.yaml --eval-every 1 --out {again}"
        missing.append(Missing("No accuracies while training; a new run can have them.", command))
    return missing


def _summary(folder: RunFolder) -> Mapping[str, Any]:
    # Without later evaluations the weights, which identify them in some runs, are not needed.
    return with_later_results(folder) if folder.read_evaluations() else folder.read_summary()
