"""`sora figure`: the figures of the paper from runs, as PDF, SVG, PNG or a page."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from sora._devices import set_threads
from sora.cli._parse import changed, parse
from sora.errors import UserError
from sora.probes import SubjectOptions
from sora.report.paper_figures import FIGURES, Request, make

_NAMES = "\n".join(
    f"{name}: {entry.summary} (Figure {', '.join(map(str, entry.numbers))})"
    for name, entry in FIGURES.items()
)


@dataclass(frozen=True)
class Flags:
    """Draw a figure of the paper from runs; what it measures is stored in the runs and used again."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME", help=_NAMES)]
    runs: Annotated[
        tyro.conf.Positional[tuple[str, ...]],
        tyro.conf.arg(metavar="[RUN ...]", help="run folders or folders of runs; data sets for `classes`"),
    ] = ()
    out: Annotated[
        str,
        tyro.conf.arg(
            help="files, ending in .pdf, .svg, .png or .html, with commas between; NAME.pdf if not given"
        ),
    ] = ""
    at: Annotated[str, tyro.conf.arg(help="steps of snapshots for `boundary`, e.g. 10,40,120")] = ""
    second: Annotated[Literal["random", "pgd"], tyro.conf.arg(help="second direction of `landscape`")] = (
        "random"
    )
    paper: Annotated[bool, tyro.conf.arg(help="`overview` of the paper's own numbers")] = False
    limit: Annotated[int | None, tyro.conf.arg(help="test images; if not given, the probe's number")] = None
    seed: Annotated[int, tyro.conf.arg(help="seed of random directions and starts")] = 0
    model: Annotated[str | None, tyro.conf.arg(help="for a custom network: its package.module:function")] = (
        None
    )
    data_dir: Annotated[
        str | None, tyro.conf.arg(help="folder of the data sets; default: $SORA_DATA, else the user's cache")
    ] = None
    device: Annotated[str, tyro.conf.arg(help="cpu, cuda, cuda:1 ...; auto: a GPU if there is one")] = "auto"
    threads: Annotated[int, tyro.conf.arg(help="CPU threads; 0: torch's choice")] = 0


def run(argv: list[str]) -> int:
    """Make the figure, then write it into each file."""
    from sora.report.files import check_names, write_figure

    flags = parse(Flags, argv, "figure")
    _refuse_flags_of_other_figures(flags)
    set_threads(flags.threads)
    files = [Path(name) for name in (flags.out or f"{flags.name}.pdf").split(",")]
    check_names(files)
    options = SubjectOptions(
        images=flags.limit,
        seed=flags.seed,
        model=flags.model,
        data_dir=flags.data_dir,
        device=flags.device,
        progress=True,
    )
    request = Request(flags.runs, _steps(flags.at), flags.second, flags.paper, options)
    figure = make(flags.name, request)
    for line in request.left_out:
        print(f"sora: not in the figure: {line}", file=sys.stderr)
    for file in files:
        write_figure(figure, file, flags.name)
        print(file)
    return 0


def _refuse_flags_of_other_figures(flags: Flags) -> None:
    """Raise for a flag that the figure would ignore."""
    given = {"at": bool(flags.at), "second": flags.second != "random", "paper": flags.paper}
    for flag, figure in (("at", "boundary"), ("second", "landscape"), ("paper", "overview")):
        if given[flag] and flags.name != figure:
            raise UserError(f"--{flag} applies only to `sora figure {figure}`")
    if flags.paper and flags.runs:
        raise UserError("--paper draws the paper's own numbers; name no runs with it")
    measuring = [name for name, entry in FIGURES.items() if entry.measures]
    if flags.name in FIGURES and flags.name not in measuring:
        for flag in changed(flags, "limit", "seed", "model", "device"):
            raise UserError(f"{flag} applies only to `sora figure` {', '.join(measuring)}")


def _steps(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part]
    except ValueError:
        raise UserError(f"--at takes steps with commas between, e.g. 10,40,120; got {text!r}") from None
