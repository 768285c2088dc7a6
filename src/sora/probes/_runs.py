"""A probe applied to what a user names: run folders, comparisons or data sets; results are stored in runs."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sora import data
from sora._devices import pick_device
from sora._files import create_folder, plain
from sora._task import PLAIN
from sora.errors import RunError, UserError, short
from sora.evaluation.subject import select_test_images
from sora.probes._base import Probe, ProbedModel, ProbeInfo, Result, create, info, names
from sora.probes._records import (
    Missing,
    Setting,
    alarms_of,
    method_of,
    read_runs,
    settings_of,
    settings_of_paper,
    title_of,
)
from sora.runs import RunFolder, describe_model, find_runs, load_data, load_model, unique_labels
from sora.threat import threat

LONGEST = 100  # characters of all runs in the picture's name; file systems allow 255 bytes for a name
FLAGS = {"step": "--at", "images": "--limit", "eps": "--eps", "seed": "--seed", "model": "--model"}
FLAGS |= {"device": "--device", "data_dir": "--data-dir"}
READS = {"logs": "reads the logs of a run", "comparison": "compares finished runs", "data": "shows data sets"}
Steps = Sequence[int] | Literal["alarm"]


@dataclass(frozen=True)
class SubjectOptions:
    """Which weights of a run are measured, on which images, under which threat."""

    step: int | None = None  # of a snapshot; the final weights if not given
    images: int | None = None  # from the test set, class-balanced; the probe's default if not given
    eps: str | None = None  # the run's own if not given
    seed: int = 0  # of random directions and starts
    model: str | None = None  # repeats the `package.module:function` of a run with a custom model
    data_dir: str | None = None  # where data sets are; the run's own setting if not given
    device: str = "auto"  # or `cpu`, `cuda`, `cuda:1`, `mps` ...
    progress: bool = False  # show a bar on a terminal

    def __post_init__(self) -> None:
        if self.images is not None and self.images < 1:
            raise UserError(f"--limit is {self.images}; allowed: 1 or more")


class ProbeReport(NamedTuple):
    """What a probe found."""

    probe: Probe[Any]
    results: dict[str, Result]  # by the names of the runs, settings or data sets
    picture: Path  # the file to draw
    left_out: Sequence[str] = ()  # runs that are not among the results, and why, one line each

    @property
    def sentences(self) -> dict[str, str]:
        """The results in words, one line each."""
        return {label: self.probe.sentence(result) for label, result in self.results.items()}


def probe_runs(
    name: str,
    folders: Sequence[str | Path],
    options: SubjectOptions | None = None,
    out: str | Path | None = None,
) -> ProbeReport:
    """Measure each run, store `probes/NAME.json` in it, and draw one picture, in the folder `out` if given.

    Another step, number of images, radius or seed than usual is part of the files' names.
    """
    if out:
        create_folder(Path(out))  # a mistake is reported before anything is measured or stored
    report = measure_named(name, folders, options)
    report = report._replace(picture=Path(out or report.picture.parent) / report.picture.name)
    report.probe.picture(report.results, report.picture)
    return report


def measure_named(
    name: str,
    named: Sequence[str | Path],
    options: SubjectOptions | None = None,
    *,
    steps: Steps = (),
    reuse: bool = False,
    **own: Any,
) -> ProbeReport:
    """Apply a probe to what the user named, without drawing; what it finds in a run is stored there.

    Run folders, folders of runs or data sets are named. With `steps` several snapshots of one run take the
    place of several runs; `alarm` means three that show a collapse. With `reuse`, results that are stored
    in the runs are used if they are of the same weights. `own` are options of the probe.
    """
    options = options or SubjectOptions()
    entry, probe = info(name), create(name, **own)
    if entry.needs != "model":
        _refuse_options_of_models(entry, options, steps)
    if not named and entry.needs != "data" and not own.get("paper"):
        raise UserError("name at least one run folder or folder of runs")
    if entry.needs in ("comparison", "data"):
        left_out: list[str] = []
        if entry.needs == "data":
            known = data.names()  # packed copies of the user's own images have no name
            lines = data.inventory(options.data_dir) if not named else ()
            here = [line.name for line in lines if line.images and line.name in known]
            subjects: Sequence[Any] = [data.load(str(each), options.data_dir) for each in named or here]
        else:
            subjects = settings_of_paper() if own.get("paper") else _compared(named, left_out)
        results = {subject.name: plain(probe.measure(subject)) for subject in subjects}
        return ProbeReport(probe, results, Path(f"{name}.png"), left_out)
    runs = _named_runs(named)
    labels, ways, title = unique_labels(runs), [options], name
    if steps:
        if len(runs) > 1:
            raise UserError("several steps are shown of one run; name one run")
        ways = [replace(options, step=step) for step in (moments(runs[0]) if steps == "alarm" else steps)]
        labels = [f"step {way.step}" for way in ways]
        title = "-".join([name, *(str(way.step) for way in ways)])
    title = _title(title, entry, options, own)
    if len(runs) > 1:
        suffix = "-" + "-".join(labels)
        title += suffix if len(suffix) <= LONGEST else f"-{len(runs)}-runs"
    results = {}
    for label, (run, way) in zip(labels, itertools.product(runs, ways), strict=True):
        stored_as = entry.of or name
        file = _title(stored_as, entry, way, own)
        result = run.read_probe(file) if reuse and entry.needs == "model" else None
        if result is None or is_outdated(result, run.digest_of_weights):
            result = _measure(entry, probe, run, way)
            about = {"probe": stored_as, "run": run.name if steps else label, "at": way.step}
            result = {"method": method_of(run.read_config())} | result
            run.write_probe(file, about | result)
        results[label] = result
    return ProbeReport(probe, results, runs[0].probes / f"{title}.png")


def _refuse_options_of_models(entry: ProbeInfo, options: SubjectOptions, steps: Steps) -> None:
    """Raise for options that a probe without a model would ignore."""
    given = ["--at"] if steps else []
    given += [flag for key, flag in FLAGS.items() if getattr(options, key) != getattr(SubjectOptions, key)]
    if entry.needs == "data" and options.data_dir:
        given.remove("--data-dir")
    if given:
        measuring = ", ".join(other for other in names() if info(other).needs == "model")
        raise UserError(f"{entry.name} {READS[entry.needs]}; {given[0]} applies only to {measuring}")


def _compared(named: Sequence[str | Path], left_out: list[str]) -> list[Setting]:
    """Return the finished runs by setting; the others are noted in `left_out`."""
    missing: list[Missing] = []
    runs = read_runs(named)
    settings = settings_of(runs, missing)
    left_out += [each.what for each in missing]
    if not settings:
        raise UserError("; ".join(["no finished run among these", *left_out]))
    attack = settings[0].attack
    for run in runs:
        if not run.summary:
            reason = "its summary cannot be read" if run.folder.is_finished() else "it is not finished"
            left_out.append(f"{run.label}: {reason}")
        elif (run.summary.get("accuracy") or {}).get(attack) is None:
            left_out.append(f"{run.label}: no accuracy under {title_of(attack)}")
    return settings


def _named_runs(named: Sequence[str | Path]) -> list[RunFolder]:
    """Return the runs at and below the paths; raise for a path without one."""
    found = [find_runs([path]) if Path(path).is_dir() else [RunFolder(path)] for path in named]
    runs = [run for some in found for run in some]
    for run in runs:
        run.read_config()  # raises if this is not a run folder
    return runs


def moments(run: RunFolder) -> list[int]:
    """Return steps of snapshots that show a collapse: halfway to the first alarm, just before it, at the end.

    The first weights of a run have hardly learned anything, so they are not chosen if there are others.
    """
    steps = list(run.snapshots.files())
    if len(steps) < 3:
        raise UserError(f"{run.path} has {len(steps)} snapshots; the figure needs 3, see --at")
    alarms = alarms_of(run.read_log("events"))
    before = [step for step in steps[1:-1] if alarms and step < alarms[0]]
    middle = before[-1] if before else steps[len(steps) // 2]
    early = [step for step in steps if step <= middle / 2] or steps
    return [early[-1] if early[-1] < middle else steps[0], middle, steps[-1]]


def _measure(entry: ProbeInfo, probe: Probe[Any], run: RunFolder, options: SubjectOptions) -> Result:
    """Return what a probe finds in a run; logs that it cannot read are damaged."""
    if entry.needs == "model":
        subject = load_subject(run, entry.images, options)
        with PLAIN.reading(subject.model):
            return dict(plain(probe.measure(subject)))
    try:
        return dict(plain(probe.measure(run)))
    except (LookupError, TypeError, AttributeError, ArithmeticError) as error:
        reason = f"{type(error).__name__} {short(str(error))}"  # of a line without an entry, for example
        raise RunError(f"the logs of {run.path} are damaged: {reason}") from None


def _title(name: str, entry: ProbeInfo, options: SubjectOptions, own: Mapping[str, Any]) -> str:
    """Return the name of files: unusual images, radii or seeds must not replace the usual result."""
    if entry.needs != "model":
        return name
    title = name if options.step is None else f"{name}-{options.step}"
    if options.images and options.images != entry.images:
        title += f"-n{options.images}"
    if options.eps is not None:
        title += f"-eps{options.eps.replace('/', '_')}"
    title += "" if options.seed == 0 else f"-seed{options.seed}"
    return f"{title}-pgd" if own.get("second") == "pgd" else title


def is_outdated(result: Result, digest_of: Callable[[Any], str | None]) -> bool:
    """Return whether the weights, by step or None, have changed since a probe measured them.

    Older versions stored no checksum.
    """
    digest = result.get("weights_blake2b")
    return digest is not None and digest != digest_of(result.get("at"))


def load_subject(run: RunFolder, default_images: int, options: SubjectOptions) -> ProbedModel:
    """Return the model of a run, at its end or at a snapshot, on images of its test set."""
    settings = run.read_settings()
    dataset = load_data(run, settings, data_dir=options.data_dir)
    if options.step is not None:
        # Built from the settings, because the run may still be training and have no final model.
        description = describe_model(settings, dataset)
        model = load_model(description, run.snapshots.file(options.step), options.model)
    elif run.has_model():
        description = run.read_model()
        run.check_weights(description)
        model = load_model(description, run.weights, options.model)
    else:
        steps = ", ".join(map(str, run.snapshots.files())) or "none"
        raise UserError(f"{run.path} is not finished; --at STEP takes a snapshot, it has: {steps}")
    count = options.images or min(default_images, len(dataset.test))
    images, which = select_test_images(dataset, count)
    ball = threat(settings.norm, options.eps) if options.eps is not None else settings.threat()
    chosen = options.seed, options.progress, dataset.classes, which["positions"]
    return ProbedModel(model.to(pick_device(options.device)), images, ball, *chosen)
