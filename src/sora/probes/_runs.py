"""A probe applied to run folders: its results are stored in each, and one picture shows them all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sora._files import create_folder, plain
from sora.errors import RunError, UserError, short
from sora.probes._base import Probe, ProbeInfo, Result, create, info, names
from sora.probes._subject import SubjectOptions, load_subject
from sora.runs import RunFolder, unique_labels

LONGEST = 100  # characters of all runs in the picture's name; file systems allow 255 bytes for a name


class ProbeReport(NamedTuple):
    """Results and sentences by the names of the runs, and where the picture is."""

    results: dict[str, Result]
    sentences: dict[str, str]
    picture: Path


def probe_runs(
    name: str,
    folders: Sequence[str | Path],
    options: SubjectOptions | None = None,
    out: str | Path | None = None,
) -> ProbeReport:
    """Measure each run, store `probes/NAME.json` in it, and draw one picture.

    Another step, number of images, radius or seed than usual is part of the files' names.

    Args:
        name: A probe from `names()`.
        folders: Run folders.
        options: Which weights and images; for probes that measure a model.
        out: Folder of the picture; the first run's `probes/` if not given.
    """
    options = options or SubjectOptions()
    entry, probe = info(name), create(name)
    runs = [RunFolder(folder) for folder in folders]
    if not runs:
        raise UserError("name at least one run folder")
    if not entry.needs_model:
        _refuse_options_of_models(name, options)
    title = file_title(entry, options)
    place = Path(out) if out else runs[0].probes
    if out:
        create_folder(place)  # a mistake is reported before anything is measured or stored
    results: dict[str, Result] = {}
    for run, label in zip(runs, unique_labels(runs), strict=True):
        run.read_config()  # raises if this is not a run folder
        if entry.needs_model:
            result = plain(probe.measure(load_subject(run, entry.images, options)))
        else:
            result = _measure_logs(probe, run)
        run.write_probe(title, {"probe": name, "run": label, "at": options.step, **result})
        results[label] = result
    suffix = "" if len(results) == 1 else "-" + "-".join(results)
    if len(suffix) > LONGEST:
        suffix = f"-{len(results)}-runs"
    picture = place / f"{title}{suffix}.png"
    probe.picture(results, picture)
    return ProbeReport(results, {label: probe.sentence(result) for label, result in results.items()}, picture)


def _measure_logs(probe: Probe[Any], run: RunFolder) -> Result:
    try:
        result: Result = plain(probe.measure(run))
        return result
    except (KeyError, TypeError, ArithmeticError) as error:  # a line without an entry, or of another type
        raise RunError(
            f"the logs of {run.path} are damaged: {type(error).__name__} {short(str(error))}"
        ) from None


def _refuse_options_of_models(name: str, options: SubjectOptions) -> None:
    """Raise for options that a probe of logs would ignore."""
    flags: dict[str, object] = {"--at": options.step, "--limit": options.images, "--eps": options.eps}
    flags |= {"--seed": options.seed or None, "--model": options.model, "--data-dir": options.data_dir}
    given = [flag for flag, value in flags.items() if value is not None]
    if given:
        measuring = [other for other in names() if info(other).needs_model]
        raise UserError(f"{name} reads the logs of a run; {given[0]} applies only to {', '.join(measuring)}")


def file_title(entry: ProbeInfo, options: SubjectOptions) -> str:
    """The name of the files: other images, radii or seeds than usual must not replace the usual result."""
    title = entry.name if options.step is None else f"{entry.name}-{options.step}"
    if not entry.needs_model:
        return title
    if options.images and options.images != entry.images:
        title += f"-n{options.images}"
    if options.eps is not None:
        title += f"-eps{options.eps.replace('/', '_')}"
    return title if options.seed == 0 else f"{title}-seed{options.seed}"
