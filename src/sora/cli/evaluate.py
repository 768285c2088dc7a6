"""`sora evaluate`: the truth about a trained model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import tyro
from rich.console import Console
from torch import nn

import sora
from sora import data
from sora._files import plain
from sora.attacks import parse_all
from sora.cli._evaluate_tables import attack_table, class_table, confusion_table, threat_table
from sora.cli._parse import parse, parse_set
from sora.cli._tables import VERDICT_STYLE
from sora.data import Dataset
from sora.errors import UserError
from sora.evaluation import BATCH, Evaluation, warnings_about
from sora.evaluation.card import PROTOCOL, ModelFacts, write_card
from sora.evaluation.records import evaluate_into, full_record
from sora.runs import RunFolder
from sora.threat import Threat, threat
from sora.training.config import TrainConfig, defaults
from sora.training.distributed import pick_device, process_group, rank, world
from sora.training.run import build_model, load_weights, read_config

HELP = "accuracy of a trained model under attacks"

Set = tyro.conf.UseAppendAction[tuple[str, ...]]


@dataclass(frozen=True)
class Flags:
    """sora evaluate RUN, or sora evaluate --weights FILE --model NAME --dataset NAME."""

    run: Annotated[str | None, tyro.conf.Positional] = None
    """a run folder"""
    weights: str | None = None
    """in place of a run: weights of a model, a safetensors file"""
    model: str | None = None
    """with --weights: its network; with RUN: repeats the run's own package.module:function"""
    dataset: str | None = None
    """data set; none: the run's"""
    width: int | None = None
    """with --weights: channels of the first stage"""
    set: Set = ()
    """with --weights: an option of the network, e.g. model.stages=2; may be repeated"""
    attacks: str = "clean,fgsm,pgd10"
    """clean, fgsm, pgdK, pgdKxR (K steps, R restarts), aa (AutoAttack), apgd-ce, apgd-t, fab-t, square"""
    eps: str | None = None
    """radii, e.g. 4/255,8/255 or l2:0.5; none: what the model was trained for"""
    norms: str | None = None
    """linf, l2 or both, for each radius without a norm of its own"""
    limit: int | None = None
    """so many test images, class-balanced; none: as in the run; 0: all"""
    batch_size: int = BATCH
    """images attacked together"""
    seed: int = 0
    """seed of the attacks"""
    data_dir: str | None = None
    """where data sets live; else $SORA_DATA, else the user's cache"""
    out: str | None = None
    """folder of evaluation.json; none: the run, or FILE-evaluation beside the weights"""
    device: str = "auto"
    """cpu, cuda, cuda:1 ...; auto: a GPU if there is one"""
    threads: int = 0
    """CPU threads; 0: torch's choice"""
    per_class: bool = False
    """print the accuracy of each class as well"""
    confusion: str | None = None
    """print true against predicted classes under this attack"""
    card: bool = False
    """write model_card.md and model_card.json"""
    json: bool = False
    """print the records as JSON"""
    quiet: bool = False
    """no progress bar"""


class Judged(NamedTuple):
    """What is evaluated: a model, its data, its threat, and what is known about it."""

    model: nn.Module
    dataset: Dataset
    config: TrainConfig
    folder: Path
    about: dict[str, Any]
    load: str
    summary: dict[str, Any]


def run(argv: list[str]) -> int:
    """Evaluate, write, print."""
    flags = parse(Flags, argv, "evaluate")
    attacks = parse_all(flags.attacks)
    if flags.threads:
        torch.set_num_threads(flags.threads)
    device = pick_device(flags.device)
    judged = _from_weights(flags) if flags.weights else _from_run(flags)
    limit = judged.config.limit_test if flags.limit is None else flags.limit or None
    with process_group(device):
        first = rank() == 0
        found = evaluate_into(
            RunFolder(judged.folder),
            judged.model,
            data.split(judged.dataset, holdout=0, limit_test=limit).test,
            _threats(flags, judged.config),
            attacks,
            about=judged.about,
            batch_size=flags.batch_size,
            seed=flags.seed,
            num_classes=judged.dataset.num_classes,
            device=device,
            progress=first and not flags.quiet and not flags.json,
            shard=world() > 1,
        )
    if first and flags.card:
        trained_for = judged.config.threat()  # the headline, where it was evaluated
        ordered = sorted(found, key=lambda evaluation: evaluation.threat != trained_for)
        write_card(RunFolder(judged.folder), _facts(judged), ordered)
    if first:
        _print(flags, judged, found)
    return 0


def _from_run(flags: Flags) -> Judged:
    if flags.run is None:
        raise UserError("name a run folder, or --weights FILE with --model and --dataset")
    given = [name for name in ("width", "set") if getattr(flags, name)]
    if given:
        raise UserError(f"--{given[0]} goes with --weights; a run knows its own network")
    folder = Path(flags.run)
    config = TrainConfig.build(read_config(folder))
    model = sora.load(folder, model=flags.model)
    dataset = data.load(flags.dataset or config.dataset, flags.data_dir or config.data_dir)
    path = folder / "summary.json"
    summary = json.loads(path.read_text()) if path.exists() else {}
    about = {key: summary.get(key) for key in ("method", "model", "seed", "weights")}
    load = f'import sora\n\nmodel = sora.load("{folder.name}")  # the run folder'
    out = Path(flags.out) if flags.out else folder
    return Judged(model, dataset, config, out, about | _circumstances(dataset), load, summary)


def _from_weights(flags: Flags) -> Judged:
    if flags.run is not None or flags.weights is None or flags.model is None or flags.dataset is None:
        raise UserError("--weights needs --model and --dataset, and no run folder")
    path = Path(flags.weights)
    base = defaults(flags.dataset, "benign", {}, flags.model)
    own = {"data_dir": flags.data_dir, "set": base["set"] | parse_set(flags.set)}
    config = TrainConfig.build({**base, **own, "width": flags.width or base.get("width")})
    dataset = data.load(flags.dataset, flags.data_dir)
    model, spec = build_model(config, dataset)
    load_weights(model, path)
    about = {"model": flags.model, "weights": path.name}
    options = {**spec, **spec["options"], "name": None, "options": None}
    text = ", ".join(f"{key}={value!r}" for key, value in options.items() if value is not None)
    load = (
        "import safetensors.torch\nimport sora\n\n"
        f'model = sora.models.create("{flags.model}", {text})\n'
        f'model.load_state_dict(safetensors.torch.load_file("{path.name}"))\nmodel.eval()'
    )
    out = Path(flags.out) if flags.out else path.with_name(f"{path.stem}-evaluation")
    return Judged(model, dataset, config, out, about | _circumstances(dataset), load, {})


def _circumstances(dataset: Dataset) -> dict[str, Any]:
    versions = {name: metadata.version(name) for name in ("torch", "numpy", "pyautoattack")}
    return {"dataset": dataset.name, "versions": {"sora": sora.__version__, **versions}}


def _threats(flags: Flags, config: TrainConfig) -> list[Threat]:
    """Each radius in each norm; a radius may name its own."""
    norms = [word.strip() for word in (flags.norms or config.norm).split(",")]
    radii = [word.strip() for word in (flags.eps or config.eps).split(",")]
    found = []
    for radius in radii:
        own, colon, eps = radius.partition(":")
        found += [threat(own, eps)] if colon else [threat(norm, radius) for norm in norms]
    return list(dict.fromkeys(found))


def _facts(judged: Judged) -> ModelFacts:
    config = judged.config
    if not judged.summary:
        return ModelFacts(judged.folder.name, config.model, judged.dataset.name, judged.load)
    settings = ("method", "norm", "eps", "epochs", "batch_size", "optimizer", "lr", "schedule", "augment")
    training = {key: getattr(config, key) for key in (*settings, "weight_decay", "seed")} | config.set
    training |= {key: judged.summary.get(key) for key in ("n_train", "train_seconds", "weights")}
    name = f"{config.method} {config.model} {config.dataset}"
    return ModelFacts(name, config.model, judged.dataset.name, judged.load, training)


def _print(flags: Flags, judged: Judged, found: Sequence[Evaluation]) -> None:
    if flags.json:
        records = [judged.about | full_record(evaluation) for evaluation in found]
        shown = [{key: value for key, value in each.items() if key != "predictions"} for each in records]
        print(json.dumps(plain(shown), indent=2))
        return
    console = Console(highlight=False)
    console.print(attack_table(found[0]) if len(found) == 1 else threat_table(found))
    for evaluation in found:
        where = f"{evaluation.threat.norm} {evaluation.threat.given}"
        if evaluation.verdict:
            console.print(f"{where}: [{VERDICT_STYLE[evaluation.verdict]}]{evaluation.verdict}[/]")
        for text in warnings_about(evaluation):
            console.print(f"{where}: warning: {text}", style="yellow", markup=False)
        if flags.per_class:
            console.print(class_table(evaluation, judged.dataset.classes))
        if flags.confusion:
            console.print(confusion_table(evaluation, flags.confusion, judged.dataset.classes))
    console.print(PROTOCOL, style="dim", markup=False)
    console.print(f"n = {found[0].n} images of {judged.dataset.name}; {RunFolder(judged.folder).evaluations}")
