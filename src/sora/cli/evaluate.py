"""`sora evaluate`: the truth about a trained model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.console import Console

from sora import data
from sora._devices import pick_device, set_threads
from sora._files import plain
from sora._ranks import rank, world
from sora.attacks import create_all
from sora.cli._evaluate_tables import attack_table, class_table, confusion_table, threat_table
from sora.cli._parse import parse, parse_set
from sora.cli._tables import VERDICT_STYLE
from sora.errors import UserError
from sora.evaluation import BATCH, Evaluation, warnings_about
from sora.evaluation.card import PROTOCOL, write_card
from sora.evaluation.records import evaluate_into, full_record
from sora.evaluation.subject import Subject, subject_of_run, subject_of_weights
from sora.training.distributed import process_group

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
    """number of test images, class-balanced; none: as in the run; 0: all"""
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


def run(argv: list[str]) -> int:
    """Evaluate, write, print."""
    flags = parse(Flags, argv, "evaluate")
    attacks = create_all(flags.attacks)
    set_threads(flags.threads)
    device = pick_device(flags.device)
    subject = _subject(flags)
    limit = subject.settings.limit_test if flags.limit is None else flags.limit or None
    with process_group(device):
        first = rank() == 0
        evaluations = evaluate_into(
            subject.folder,
            subject.model,
            data.split(subject.dataset, holdout=0, limit_test=limit).test,
            subject.threats(flags.eps, flags.norms),
            attacks,
            about=subject.about,
            batch_size=flags.batch_size,
            seed=flags.seed,
            num_classes=subject.dataset.num_classes,
            device=device,
            progress=first and not flags.quiet and not flags.json,
            shard=world() > 1,
        )
    if first and flags.card:
        trained_for = subject.settings.threat()  # the headline, where it was evaluated
        ordered = sorted(evaluations, key=lambda evaluation: evaluation.threat != trained_for)
        write_card(subject.folder, subject.facts(), ordered)
    if first:
        _print(flags, subject, evaluations)
    return 0


def _subject(flags: Flags) -> Subject:
    places = {"data_dir": flags.data_dir, "out": flags.out}
    if flags.weights is not None:
        if flags.run is not None or flags.model is None or flags.dataset is None:
            raise UserError("--weights needs --model and --dataset, and no run folder")
        options = parse_set(flags.set)
        return subject_of_weights(
            flags.weights,
            model=flags.model,
            dataset=flags.dataset,
            width=flags.width,
            options=options,
            **places,
        )
    if flags.run is None:
        raise UserError("name a run folder, or --weights FILE with --model and --dataset")
    given = [name for name in ("width", "set") if getattr(flags, name)]
    if given:
        raise UserError(f"--{given[0]} goes with --weights; a run already records its network")
    return subject_of_run(flags.run, model=flags.model, dataset=flags.dataset, **places)


def _print(flags: Flags, subject: Subject, evaluations: Sequence[Evaluation]) -> None:
    if flags.json:
        records = [subject.about | full_record(evaluation) for evaluation in evaluations]
        shown = [{key: value for key, value in each.items() if key != "predictions"} for each in records]
        print(json.dumps(plain(shown), indent=2))
        return
    console = Console(highlight=False)
    console.print(attack_table(evaluations[0]) if len(evaluations) == 1 else threat_table(evaluations))
    for evaluation in evaluations:
        where = f"{evaluation.threat.norm} {evaluation.threat.given}"
        if evaluation.verdict:
            console.print(f"{where}: [{VERDICT_STYLE[evaluation.verdict]}]{evaluation.verdict}[/]")
        for text in warnings_about(evaluation):
            console.print(f"{where}: warning: {text}", style="yellow", markup=False)
        if flags.per_class:
            console.print(class_table(evaluation, subject.dataset.classes))
        if flags.confusion:
            console.print(confusion_table(evaluation, flags.confusion, subject.dataset.classes))
    console.print(PROTOCOL, style="dim", markup=False)
    console.print(f"n = {evaluations[0].n} images of {subject.dataset.name}; {subject.folder.evaluations}")
