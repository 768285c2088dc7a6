"""`sora probe`: look inside trained models; each probe writes JSON into the runs and one picture."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from torch import nn

import sora
from sora import data, models
from sora._files import plain, write_json
from sora.cli._parse import parse
from sora.data import Dataset
from sora.errors import UserError
from sora.evaluation import probes
from sora.report.probes import PICTURES
from sora.report.traces import traces, traces_picture
from sora.threat import threat
from sora.training.config import TrainConfig
from sora.training.distributed import pick_device
from sora.training.run import build_model, check_own, load_weights, read_config

Kind = Literal["eps-curve", "landscape", "boundary", "curvature", "traces"]
Probe = Callable[..., dict[str, Any]]

PROBES: dict[str, tuple[Probe, int]] = {  # what measures, and on how many images by default
    "eps-curve": (probes.eps_curve, 500),
    "landscape": (probes.landscape, 64),
    "boundary": (probes.boundary, 64),
    "curvature": (probes.curvature, 64),
}


@dataclass(frozen=True)
class Flags:
    """sora probe KIND RUN [RUN ...]: eps-curve, landscape, boundary, curvature or traces."""

    kind: Annotated[Kind, tyro.conf.Positional]
    """what to look at"""
    runs: Annotated[tuple[str, ...], tyro.conf.Positional]
    """run folders; several share one picture"""
    at: int | None = None
    """weights of this step, from the snapshots of a run, finished or not; none: the final weights"""
    limit: int | None = None
    """so many test images, class-balanced; none: 500 for eps-curve, else 64"""
    eps: str | None = None
    """radius; none: what the run was trained for"""
    seed: int = 0
    """seed of random directions and starts"""
    model: str | None = None
    """repeats the run's own package.module:function"""
    data_dir: str | None = None
    """where data sets live; else $SORA_DATA, else the user's cache"""
    out: str | None = None
    """folder of the picture; none: probes/ in the first run"""
    device: str = "auto"
    """cpu, cuda, cuda:1 ...; auto: a GPU if there is one"""
    threads: int = 0
    """CPU threads; 0: torch's choice"""
    json: bool = False
    """print what was measured as JSON"""


def run(argv: list[str]) -> int:
    """Measure each run, write, draw, say where."""
    flags = parse(Flags, argv, "probe")
    if not flags.runs:
        raise UserError("name at least one run folder")
    if flags.kind == "traces" and flags.at is not None:
        raise UserError(f"traces shows all steps of a run; --at goes with {', '.join(PROBES)}")
    if flags.threads:
        torch.set_num_threads(flags.threads)
    folders = [Path(name) for name in flags.runs]
    step = "" if flags.at is None else f"-{flags.at}"
    found = {}
    for name, folder in zip(_names(folders), folders, strict=True):
        result = traces(_existing(folder)) if flags.kind == "traces" else _measure(flags, folder)
        file = folder / "probes" / f"{flags.kind}{step}.json"
        file.parent.mkdir(exist_ok=True)
        write_json(file, {"probe": flags.kind, "run": name, "at": flags.at, **result})
        found[name] = plain(result)
    place = Path(flags.out) if flags.out else folders[0] / "probes"
    several = "" if len(found) == 1 else "-" + "-".join(found)
    picture = place / f"{flags.kind}{step}{several}.png"
    (traces_picture if flags.kind == "traces" else PICTURES[flags.kind])(found, picture)
    if flags.json:
        print(json.dumps(found, indent=2))
    else:
        for name, result in found.items():
            print(f"{name}: {_words(flags.kind, result)}")
        print(f"picture: {picture}")
    return 0


def _names(folders: list[Path]) -> list[str]:
    """Short names; the parent's too where two runs share theirs."""
    short = [folder.resolve().name for folder in folders]
    if len(set(short)) == len(short):
        return short
    longer = [f"{folder.resolve().parent.name}-{folder.resolve().name}" for folder in folders]
    if len(set(longer)) < len(longer):
        raise UserError("the same run is named twice")
    return longer


def _existing(folder: Path) -> Path:
    read_config(folder)
    return folder


def _measure(flags: Flags, folder: Path) -> dict[str, Any]:
    config = TrainConfig.build(read_config(folder))
    weights = None if flags.at is None else snapshot(folder, flags.at)
    if weights is None and not (folder / "model.json").exists():
        raise UserError(f"{folder} is not finished; --at STEP takes a snapshot, it has: {_kept(folder)}")
    probe, few = PROBES[flags.kind]
    dataset = data.load(config.dataset, flags.data_dir or config.data_dir)
    model = _network(flags, folder, config, dataset, weights)
    limit = min(flags.limit or few, len(dataset.test))
    images = data.split(dataset, holdout=0, limit_test=limit).test
    radius = threat(config.norm, flags.eps) if flags.eps else config.threat()
    device = pick_device(flags.device)
    return probe(model.to(device), images, radius, seed=flags.seed, progress=not flags.json)


def _network(
    flags: Flags, folder: Path, config: TrainConfig, dataset: Dataset, weights: Path | None
) -> nn.Module:
    """The final network of a run; for a snapshot the one its settings describe, as the run may go on."""
    if weights is None:
        return sora.load(folder, model=flags.model)
    check_own(config.model, flags.model)
    model, _ = build_model(config, dataset)
    load_weights(model, weights)
    return models.fast_layout(model).eval()


def snapshot(folder: Path, step: int) -> Path:
    """The weights a run kept of a step; of several attempts, the last one's."""
    found = _snapshots(folder)
    if step not in found:
        raise UserError(f"{folder} has no snapshot of step {step}; it has: {_kept(folder)}")
    return found[step]


def _snapshots(folder: Path) -> dict[int, Path]:
    files = sorted((folder / "snapshots").glob("step-*.safetensors"))
    return {int(file.stem.split("-")[1]): file for file in files}


def _kept(folder: Path) -> str:
    return ", ".join(map(str, _snapshots(folder))) or "none"


def _words(kind: str, result: dict[str, Any]) -> str:
    """The finding in one line."""
    match kind:
        case "eps-curve":
            fgsm, rise = result["fgsm"], result["rise"]
            at = {m: k for k, m in enumerate(result["multiples"])}
            where = f" (from {rise['from']:g} eps to {rise['to']:g} eps)" if result["index"] else ""
            return (
                f"FGSM accuracy rises by {100 * result['index']:.1f} points at most{where}; clean "
                f"{100 * fgsm[at[0.0]]:.1f} %, FGSM {100 * fgsm[at[1.0]]:.1f} %, PGD-10 "
                f"{100 * result['pgd10'][at[1.0]]:.1f} % at eps (n = {result['n']})"
            )
        case "landscape":
            return f"the loss bumps {result['bump']:.3f} above its value at FGSM's point (n = {result['n']})"
        case "boundary":
            fooled = {
                name: sum(image["points"][name]["class"] != image["label"] for image in result["images"])
                for name in result["images"][0]["points"]
            }
            counts = ", ".join(f"{name} {count}" for name, count in fooled.items())
            return f"of {len(result['images'])} rightly classified images, fooled by {counts}"
        case "curvature":
            last = result["lemma"][-1]
            numbers = ", ".join(f"{name} {value:.3f}" for name, value in result["numbers"].items())
            return (
                f"{numbers}; measured over second order at eps/4096: 1 - PertAlign "
                f"{last['misalignment'][1]:.3f}, 1 - linearity {last['bend'][1]:.3f} (medians)"
            )
    alarms = [event["step"] for event in result["events"] if event["event"] == "alarm"]
    return f"{len(result['series'])} series; alarms at step {', '.join(map(str, alarms)) or '- (none)'}"
