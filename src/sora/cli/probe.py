"""`sora probe`, also called `sora figure`: one picture of models, runs or data sets, and its numbers."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sora import probes
from sora._devices import set_threads
from sora._files import create_folder
from sora.cli._parse import DATA_DIR, changed, flag, parse, print_json
from sora.errors import UserError
from sora.figures import PAGES, PICTURES

_ENTRIES = [probes.info(name) for name in probes.names()]
_NAMES = "\n".join(
    f"{entry.name}: {entry.summary}"
    + (f" (Figure {', '.join(map(str, entry.figures))})" if entry.figures else "")
    for entry in _ENTRIES
)
_LIMITS = ", ".join(f"{entry.images} for {entry.name}" for entry in _ENTRIES if entry.images)
_ENDINGS = (*PICTURES, *PAGES)


@dataclass(frozen=True)
class Flags:
    """Draw one picture of models, runs, comparisons or data sets; what it measures is stored in the runs.

    `sora figure` is the same command for files: it writes NAME.pdf unless --out is given.
    """

    name: str = flag("", _NAMES, metavar="NAME", positional=True)
    runs: Sequence[str] = flag(
        (),
        "run folders, folders of runs or zoo:NAME, which share one picture; data sets for `classes`",
        metavar="[RUN ...]",
        positional=True,
    )
    out: str = flag(
        "",
        "folder for the picture; default: probes/ in the first run. Or files that end in .pdf, .svg, .png or"
        " .html, with commas between, drawn from stored results if the runs have them",
    )
    at: str = flag(
        "",
        "use the weights of this step, from a snapshot of the run, instead of the final ones; 10,40,120:"
        " several steps of one run; alarm: halfway to the first alarm, just before it and at the end",
    )
    limit: int | None = flag(None, f"number of test images, class-balanced; default: {_LIMITS}")
    eps: str | None = flag(None, "radius; default: the run's")
    seed: int = flag(0, "seed of random directions and starts")
    second: Literal["random", "pgd"] = flag("random", "second direction of `landscape`")
    paper: bool = flag(False, "`overview` of the paper's own numbers")
    model: str | None = flag(None, "the run's custom model, package.module:function")
    data_dir: str | None = flag(None, DATA_DIR)
    device: str = flag("auto", "cpu, cuda, cuda:1, mps, xpu ...; auto: a GPU if there is one")
    threads: int = flag(0, "CPU threads; 0: torch's choice")
    json: bool = flag(False, "print the measurements as JSON")


def run(argv: list[str], verb: str = "probe") -> int:
    """Apply one probe, print its results and draw its picture."""
    flags = parse(Flags, argv, verb)
    entry = probes.info(flags.name)
    _refuse_flags_of_other_pictures(flags, verb)
    set_threads(flags.threads)
    at = flags.at or ("alarm" if (verb, entry.name) == ("figure", "boundary") else "")
    files = _files(flags.out or (f"{entry.name}.pdf" if verb == "figure" else ""), verb)
    if flags.out and not files:
        create_folder(Path(flags.out))  # a mistake is reported before anything is measured or stored
    steps = _steps(at)
    several = steps == "alarm" or len(steps) > 1
    step = None if several or not steps else int(steps[0])
    same = {name: getattr(flags, name) for name in ("eps", "seed", "model", "data_dir", "device")}
    options = probes.SubjectOptions(step, flags.limit, **same, progress=not flags.json)
    own: dict[str, Any] = {"second": flags.second} if flags.second != "random" else {}
    own |= {"paper": True} if flags.paper else {}
    own |= {"panels": 1} if several and entry.name == "boundary" else {}
    found = probes.measure_named(
        entry.name, flags.runs, options, steps=steps if several else (), reuse=bool(files), **own
    )
    if flags.json:
        print_json(found.results)
    for line in found.left_out:
        print(f"sora: not in the figure: {line}", file=sys.stderr)
    for label, sentence in found.sentences.items() if not flags.json else ():
        print(f"{label}: {sentence}")
    for file in files or [Path(flags.out) / found.picture.name if flags.out else found.picture]:
        _draw(found, file, entry.name)
        if not flags.json:
            print(f"picture: {file}")
    return 0


def _refuse_flags_of_other_pictures(flags: Flags, verb: str) -> None:
    """Raise for a flag that the picture would ignore."""
    for own, name in (("second", "landscape"), ("paper", "overview")):
        if changed(flags, own) and flags.name != name:
            raise UserError(f"--{own} applies only to `sora {verb} {name}`")
    if flags.paper and flags.runs:
        raise UserError("--paper draws the paper's own numbers; name no runs with it")


def _files(out: str, verb: str) -> list[Path]:
    """Return the files that --out names; none if it is a folder, which `sora figure` does not write to."""
    files = [Path(name) for name in out.split(",") if name]
    if verb == "probe" and not any(file.suffix.lower() in _ENDINGS for file in files):
        return []
    for file in files:
        if file.suffix.lower() not in _ENDINGS:
            raise UserError(f"{str(file)!r} must end in one of {', '.join(_ENDINGS)}")
    return files


def _steps(at: str) -> list[int] | Literal["alarm"]:
    if at == "alarm":
        return "alarm"
    try:
        return [int(part) for part in at.split(",") if part]
    except ValueError:
        raise UserError(f"--at takes a step, steps with commas between, or alarm; got {at!r}") from None


def _draw(found: probes.ProbeReport, file: Path, name: str) -> None:
    create_folder(file.parent)
    if file.suffix.lower() in PAGES:
        from sora.report import write_figure_page

        write_figure_page(found.probe.figure(found.results), file, name)
    else:
        found.probe.picture(found.results, file)
