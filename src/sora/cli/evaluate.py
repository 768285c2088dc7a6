"""`sora evaluate`: the accuracy of a trained model under attacks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from sora._devices import pick_device, rank, set_threads, world
from sora._process import stopping_soon
from sora.attacks import Attack, create, create_all
from sora.cli._evaluate_tables import attack_table, print_evaluations
from sora.cli._parse import DATA_DIR, changed, flag, parse, print_json
from sora.cli._tables import table_console
from sora.errors import UserError
from sora.evaluation import BATCH, Evaluation, EvaluationOptions
from sora.evaluation.adversarial_files import check_adversarial
from sora.evaluation.records import evaluate_into, full_record, printable
from sora.evaluation.subject import Subject, subject_of_run, subject_of_weights
from sora.evaluation.validity import AttackFailed
from sora.runs import RunFolder, load
from sora.training.distributed import process_group


@dataclass(frozen=True)
class Flags:
    """sora evaluate RUN, or sora evaluate --weights FILE --model NAME --dataset NAME."""

    run: str | None = flag(
        None, "a run folder, or zoo:NAME (`sora list zoo`)", metavar="[RUN]", positional=True
    )
    weights: str | None = flag(
        None, "instead of a run: a file of weights, safetensors or a state dict written by torch.save"
    )
    model: str | None = flag(
        None, "with --weights: the network; with RUN: the package.module:function of its custom network"
    )
    dataset: str | None = flag(None, "data set; default: the run's")
    width: int | None = flag(None, "with --weights: channels of the first stage")
    set: dict[str, Any] | None = flag(
        None, "with --weights: an option of the network, e.g. model.stages=2; may be repeated"
    )
    attacks: str = flag(
        "clean,fgsm,pgd10",
        "separated by commas: clean, fgsm, pgdK, pgdKxR (K steps, R restarts), aa (AutoAttack), aa-reduced"
        " (AutoAttack without apgd-t), its parts apgd-ce, apgd-t, fab-t, square; for random models aa-rand"
        " and pgdK@eotN; `sora list attacks` describes each",
    )
    eps: str | None = flag(
        None,
        "radii separated by commas, e.g. 4/255,8/255 or l2:0.5; default: the run's, or with --weights that of"
        " the data set (8/255 if it has none)",
    )
    norms: str | None = flag(None, "linf, l2 or both, for radii that name no norm")
    limit: int | None = flag(None, "number of test images, class-balanced; default: as in the run; 0: all")
    first: bool = flag(False, "with --limit N: take the first N test images, as leaderboards do")
    batch_size: int = flag(BATCH, "images attacked together")
    seed: int = flag(0, "seed of the attacks")
    attack_seeds: int = flag(
        1, "repeat PGD with so many seeds, from --seed on, and print the lowest, mean and highest accuracy"
    )
    data_dir: str | None = flag(None, DATA_DIR)
    out: str | None = flag(
        None, "folder for evaluation.json; default: the run, or FILE-evaluation beside the weights FILE"
    )
    device: str = flag("auto", "cpu, cuda, cuda:1, mps, xpu ...; auto: a GPU if there is one")
    threads: int = flag(0, "CPU threads; 0: torch's choice")
    trust: bool = flag(
        False, "also run the masking tests: is the accuracy due to robustness or to attacks that fail?"
    )
    trust_source: str | None = flag(
        None, "with --trust: run folder of a second model, whose adversarial examples are tried on this one"
    )
    per_class: bool = flag(False, "also print the accuracy of each class")
    confusion: str | None = flag(None, "print the confusion matrix under this attack")
    card: bool = flag(False, "write model_card.md and model_card.json")
    additional_data: Literal["yes", "no"] | None = flag(
        None, "with --card: whether the model was trained on images from elsewhere; default: unknown"
    )
    save_adversarial: str | None = flag(None, "write the attacked images to this .npz file")
    adversarial: str | None = flag(
        None, "instead of running attacks: check the images in such a file, made for this model or another"
    )
    compile: bool = flag(False, "compile the copy of the network that long attacks run on; takes minutes")
    json: bool = flag(False, "print the records as JSON")
    quiet: bool = flag(False, "no progress bar")


def run(argv: list[str]) -> int:
    """Evaluate, write, print."""
    flags = parse(Flags, argv, "evaluate")
    attacks = create_all(flags.attacks)
    _check(flags)
    set_threads(flags.threads)
    device = pick_device(flags.device)
    subject = _subject(flags)
    if flags.adversarial is not None:
        return _check_file(flags, subject, device)
    images, chosen = subject.images(flags.limit, flags.first)
    threats = subject.threats(flags.eps, flags.norms)
    _check_confusion(flags, attacks, subject.dataset.num_classes)
    if flags.save_adversarial and len(threats) > 1:
        raise UserError(f"--save-adversarial requires a single radius; got {len(threats)}")
    about = subject.about | {"images": chosen}
    source = load(flags.trust_source) if flags.trust_source else None
    failure: AttackFailed | None = None
    with process_group(device), stopping_soon(lambda: _kept(subject.folder)):
        first = rank() == 0
        options = EvaluationOptions(
            batch_size=flags.batch_size,
            seed=flags.seed,
            attack_seeds=flags.attack_seeds,
            num_classes=subject.dataset.num_classes,
            device=device,
            progress=first and not flags.quiet and not flags.json,
            shard=world() > 1,
            network=subject.network,
            keep_inputs=flags.save_adversarial is not None,
            trust=flags.trust,
            trust_source=source,
            doubts=subject.doubts,
            compile=flags.compile,
        )
        try:
            evaluations = evaluate_into(
                subject.folder, subject.model, images, threats, attacks, options, about
            )
        except AttackFailed as error:
            failure, evaluations = error, error.finished
    if first and failure is None and flags.card:
        subject.write_card(evaluations, chosen, {"yes": True, "no": False}.get(flags.additional_data or ""))
    if first and failure is None and flags.save_adversarial:
        subject.save_adversarial(flags.save_adversarial, evaluations[0], chosen)
    if first:
        _print(flags, subject, [evaluation.only(attacks) for evaluation in evaluations], about)
    if failure is not None:
        raise failure  # its one line follows the results of the other attacks
    return 0


def _check(flags: Flags) -> None:
    """Raise for flags that do not go together."""
    if flags.first and not flags.limit:
        raise UserError("--first requires --limit N")
    if flags.trust_source and not flags.trust:
        raise UserError("--trust-source requires --trust")
    if flags.additional_data and not flags.card:
        raise UserError("--additional-data requires --card")
    others = ("trust", "card", "save_adversarial", "per_class", "confusion", "attacks", "limit", "first")
    for other in changed(flags, *others, "seed", "eps", "norms", "out") if flags.adversarial else ():
        raise UserError(f"--adversarial checks the images of a file and cannot be combined with {other}")


def _check_confusion(flags: Flags, attacks: Sequence[Attack], num_classes: int) -> None:
    """Raise if the confusion matrix is of an attack that is not run: before hours of attacks, not after."""
    names = [attack.for_classes(num_classes).name for attack in attacks]
    if flags.confusion and create(flags.confusion).for_classes(num_classes).name not in names:
        allowed = ", ".join(names)
        raise UserError(f"--confusion {flags.confusion!r} is not among --attacks; allowed: {allowed}")


def _kept(folder: RunFolder) -> str:
    """Return what an interrupted evaluation leaves behind."""
    count = len(list(folder.evaluation_state.rglob("*.safetensors")))
    units = f"{count} finished unit{'s' if count != 1 else ''} of work"
    return f"{units} kept in {folder.evaluation_state}; the same command continues from there"


def _check_file(flags: Flags, subject: Subject, device: torch.device) -> int:
    """Check attacked images from a file: inside the ball and the box, and what the model predicts."""
    assert flags.adversarial is not None
    evaluation = check_adversarial(
        flags.adversarial, subject.model, subject.dataset, batch_size=flags.batch_size, device=device
    )
    if flags.json:
        about = subject.about | {"images": {"split": "test", "of": len(subject.dataset.test)}}
        print_json(about | printable(full_record(evaluation)))
        return 0
    console = table_console()
    console.print(attack_table(evaluation))
    console.print(
        f"{evaluation.n} of {len(subject.dataset.test)} test images, attacked in {flags.adversarial}: all"
        f" inside the ball and the box; {'; '.join(evaluation.doubts)}"
    )
    return 0


def _subject(flags: Flags) -> Subject:
    places = {"data_dir": flags.data_dir, "out": flags.out}
    if flags.weights is not None:
        if flags.run is not None or flags.model is None or flags.dataset is None:
            raise UserError("--weights needs --model and --dataset, and no run folder")
        options = flags.set or {}
        return subject_of_weights(flags.weights, flags.model, flags.dataset, flags.width, options, **places)
    if flags.run is None:
        raise UserError("name a run folder, or --weights FILE with --model and --dataset")
    given = [name for name in ("width", "set") if getattr(flags, name)]
    if given:
        raise UserError(f"--{given[0]} requires --weights; a run already records its network")
    return subject_of_run(flags.run, model=flags.model, dataset=flags.dataset, **places)


def _print(flags: Flags, subject: Subject, evaluations: Sequence[Evaluation], about: dict[str, Any]) -> None:
    void = [text for each in evaluations if not each.predictions for text in each.void.values()]
    evaluations = [each for each in evaluations if each.predictions]
    if void and not evaluations:
        raise UserError("; ".join(void))
    if flags.json:
        facts = about | {"network": subject.network}
        print_json([facts | printable(full_record(each)) for each in evaluations])
    elif evaluations:
        note = f"n = {evaluations[0].n} images of {subject.dataset.name}; {subject.folder.evaluations}"
        if flags.weights and flags.eps is None:
            radius = f"{evaluations[0].threat.norm} {evaluations[0].threat.given}"
            note += f"\nno --eps was given: {radius} is the default for {subject.dataset.name}"
        classes = subject.dataset.classes
        print_evaluations(evaluations, classes, note, per_class=flags.per_class, confusion=flags.confusion)
