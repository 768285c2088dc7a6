"""`sora probe`: look inside trained models; each probe writes JSON into the runs and one picture."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated

import tyro

from sora import probes
from sora._devices import set_threads
from sora.cli._parse import parse

_KINDS = "\n".join(f"{name}: {probes.info(name).summary}" for name in probes.names())
_LIMITS = ", ".join(
    f"{entry.images} for {entry.name}" for entry in map(probes.info, probes.names()) if entry.needs_model
)


@dataclass(frozen=True)
class Flags:
    """Look inside trained models; each probe writes JSON into the runs and one picture."""

    kind: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="KIND", help=_KINDS)]
    runs: Annotated[
        tyro.conf.Positional[tuple[str, ...]],
        tyro.conf.arg(metavar="RUN [RUN ...]", help="run folders; several share one picture"),
    ]
    at: int | None = None
    """use the weights of this step, from a snapshot of the run, instead of the final ones"""
    limit: Annotated[
        int | None, tyro.conf.arg(help=f"number of test images, class-balanced; default: {_LIMITS}")
    ] = None
    eps: str | None = None
    """radius; default: the run's"""
    seed: int = 0
    """seed of random directions and starts"""
    model: str | None = None
    """the run's custom network, package.module:function"""
    data_dir: str | None = None
    """folder of the data sets; default: $SORA_DATA, else the user's cache"""
    out: str | None = None
    """folder for the picture; default: probes/ in the first run"""
    device: str = "auto"
    """cpu, cuda, cuda:1 ...; auto: a GPU if there is one"""
    threads: int = 0
    """CPU threads; 0: torch's choice"""
    json: bool = False
    """print the measurements as JSON"""


def run(argv: list[str]) -> int:
    """Apply one probe to the runs and print its results."""
    flags = parse(Flags, argv, "probe")
    set_threads(flags.threads)
    options = probes.SubjectOptions(
        step=flags.at,
        images=flags.limit,
        eps=flags.eps,
        seed=flags.seed,
        model=flags.model,
        data_dir=flags.data_dir,
        device=flags.device,
        progress=not flags.json,
    )
    report = probes.probe_runs(flags.kind, flags.runs, options, flags.out)
    if flags.json:
        print(json.dumps(report.results, indent=2))
    else:
        for name, sentence in report.sentences.items():
            print(f"{name}: {sentence}")
        print(f"picture: {report.picture}")
    return 0
