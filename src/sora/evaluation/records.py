"""The evaluation records of a folder: merged over all evaluations, nothing is measured twice."""

import base64
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn

from sora._files import locked
from sora.attacks import Attack, create
from sora.data import ImageSet
from sora.errors import UserError
from sora.evaluation.accuracy import EvaluationOptions, measure
from sora.evaluation.examples import as_examples
from sora.evaluation.fingerprints import Fingerprint, fingerprint_of, hash_inputs, state_name
from sora.evaluation.scores import OBSERVED, Evaluation
from sora.evaluation.trust import Finding
from sora.evaluation.units import remove_units
from sora.evaluation.validity import AttackFailed
from sora.runs import RunFolder, plain_state
from sora.threat import Threat

Record = dict[str, Any]
CONFUSION = 1000  # classes up to which the confusion matrix is stored; it grows with their square


def evaluate_into(
    folder: RunFolder,
    model: nn.Module,
    data: ImageSet | tuple[Tensor, Tensor],
    threats: Sequence[Threat],
    attacks: Sequence[Attack],
    options: EvaluationOptions | None = None,
    about: Mapping[str, Any] | None = None,
) -> list[Evaluation]:
    """Run the attacks that the folder has no record of yet, and add their results to its records.

    Interrupted at any moment and called again, it continues from the last finished unit. There is one record
    for each threat; new ones contain `about`, facts about the model, and the network of the options. With
    `shard` all processes must have access to the folder. If inputs are kept, attacks that have a record are
    run again; masking tests that have one, only if a second model is given. After an `AttackFailed` the
    results of the other attacks are recorded.
    """
    options, examples = options or EvaluationOptions(), as_examples(data)
    evaluations, failed = list[Evaluation](), list[str]()
    first = examples.take(torch.arange(1), torch.device("cpu"))
    for threat, attack in itertools.product(threats, attacks):  # before hours are spent on the others
        attack.check(*first, threat)
    # Before the first pass, which may change attributes of the model.
    hashes, weights = hash_inputs(model, examples, options.network), _copy_weights(model)
    network = options.network or {"name": f"{type(model).__module__}.{type(model).__qualname__}"}
    facts = {**(about or {}), "network": {**network, "fingerprint": hashes["network"]}}
    writes = not options.shard or distributed.get_rank() == 0
    for threat in threats:
        fingerprint = fingerprint_of(hashes, threat, options.seed, options.batch_size, options.task)
        record = find(folder.read_evaluations(), fingerprint, threat)
        labels = options.task.labels(examples.labels)
        evaluation = None if record is None else restore(record, labels, threat)
        again = evaluation is None or options.keep_inputs
        missing = [a for a in attacks if again or not evaluation.has(a, options.attack_seeds)]  # type: ignore[union-attr]
        tested = evaluation is not None and bool(evaluation.trust) and options.trust_source is None
        needed = replace(options, trust=options.trust and not tested)
        if missing or needed.trust:
            chosen, state = missing or [create("clean")], folder.evaluation_state
            new, reasons = measure(model, examples, threat, chosen, needed, fingerprint, state)
            merged = new if evaluation is None else evaluation.merged(new)
            if not merged.predictions and not reasons:
                void = "; ".join(new.void.values())
                if evaluation is not None or len(threats) == 1:
                    raise UserError(void)
                reasons = [f"{threat.norm} eps {threat.given}: {void}"]
            failed += reasons
            if reasons and not new.predictions:
                evaluations += [] if evaluation is None else [evaluation]
                continue
            if not all(map(torch.equal, weights, _copy_weights(model))):
                raise UserError("the model changes its own weights or buffers while it is evaluated")
            evaluation = save(folder, merged, facts) if writes else merged
        assert evaluation is not None
        if writes:  # also what a kill right after `save` left
            recorded = [*evaluation.predictions, *evaluation.void]
            remove_units(folder.evaluation_state / state_name(fingerprint, threat), recorded)
        evaluations.append(replace(evaluation, doubts=options.doubts))
    if failed:
        raise AttackFailed(failed, evaluations)
    return evaluations


def _copy_weights(model: nn.Module) -> list[Tensor]:
    """Copy all weights to the CPU, as the model may move, and as bytes: NaN is not equal to itself."""
    tensors = (value for value in plain_state(model).values() if isinstance(value, Tensor))
    return [tensor.detach().cpu().flatten().view(torch.uint8).clone() for tensor in tensors]


def full_record(evaluation: Evaluation) -> Record:
    """Return all numbers of an evaluation, and the predictions they come from."""
    names, record = list(evaluation.predictions), evaluation.record()
    by_class = names if evaluation.chance is None and evaluation.judged else []
    small = evaluation.num_classes <= CONFUSION
    versions, kind = evaluation.versions, _number_type(evaluation.num_classes)
    numbers = {name: own.numpy().astype(kind) for name, own in evaluation.predictions.items()}
    attacks = {name: {**own, "versions": versions.get(name)} for name, own in evaluation.attacks.items()}
    record["attacks" if evaluation.judged else "unjudged"] = attacks
    return {
        **record,
        "verdict": evaluation.verdict,
        "worst_case": evaluation.worst_case if evaluation.judged else {},
        "per_class": {name: evaluation.per_class(name) for name in by_class},
        "confusion": {name: evaluation.confusion(name).tolist() for name in by_class if small},
        **({} if evaluation.chance is None else {"judged": evaluation.judged, "chance": evaluation.chance}),
        **{name: getattr(evaluation, name) for name in OBSERVED},
        "void": dict(evaluation.void),
        "void_versions": {name: versions.get(name) for name in evaluation.void},
        "warnings": evaluation.warnings,
        "trust": [asdict(finding) for finding in evaluation.trust],
        "num_classes": evaluation.num_classes,
        "fingerprint": dict(evaluation.fingerprint),
        "predictions": {name: base64.b64encode(numbers[name].tobytes()).decode() for name in names},
    }


def restore(record: Record, labels: Tensor, threat: Threat) -> Evaluation:
    """Return the evaluation that a record was written from."""
    computed = ("n", "low", "high", "versions")
    attacks, classes = record["attacks"] or record.get("unjudged", {}), record["num_classes"]
    versions = {name: own.get("versions") for name, own in attacks.items()} | record.get("void_versions", {})
    bytes_of = {name: base64.b64decode(text) for name, text in record["predictions"].items()}
    numbers = {name: np.frombuffer(own, _number_type(classes)) for name, own in bytes_of.items()}
    return Evaluation(
        threat,
        labels,
        classes,
        predictions={name: torch.from_numpy(own.astype(np.int64)) for name, own in numbers.items()},
        settings={
            name: {key: value for key, value in own.items() if key not in computed}
            for name, own in attacks.items()
        },
        **{name: record[name] for name in OBSERVED if name in record},
        void=record.get("void", {}),
        versions={name: own for name, own in versions.items() if own},
        fingerprint=record["fingerprint"],
        judged=record.get("judged", True),
        chance=record.get("chance"),
        trust=[Finding(**finding) for finding in record.get("trust", [])],
    )


def save(folder: RunFolder, evaluation: Evaluation, facts: Mapping[str, Any]) -> Evaluation:
    """Add the record of an evaluation to a folder and return all that the record holds now.

    Another process may have added results since the records were read: they are read again under a lock and
    merged, so that nothing is lost.
    """
    folder.results.mkdir(parents=True, exist_ok=True)
    with locked(folder.evaluation_lock):
        records = folder.read_evaluations()
        present = find(records, evaluation.fingerprint, evaluation.threat)
        if present is None:
            present = {}
            records.append(present)
        else:
            evaluation = restore(present, evaluation.labels, evaluation.threat).merged(evaluation)
        present |= {**facts, **full_record(evaluation)}
        folder.write_evaluations(records)
    return evaluation


def with_later_results(folder: RunFolder) -> Record:
    """Return the summary of a run, completed by later evaluations of the same weights, images and threat.

    Results of the run itself come first; others of the same attack, with another seed, do not replace them.
    """
    summary = folder.read_summary()
    own = summary.get("fingerprint") or {}
    sizes = {attack["n"] for attack in summary["attacks"].values()}
    for record in folder.read_evaluations():
        of = record.get("fingerprint") or {}
        same = own and all(of.get(key) == own[key] for key in ("weights", "data"))
        evaluated = {attack["n"] for attack in record["attacks"].values()}
        if not same or record["threat"] != summary["threat"] or (sizes and evaluated != sizes):
            continue  # a run without attacks takes any number of images
        sizes = evaluated
        for key in ("accuracy", "attacks"):  # the record of the run's own evaluation counts: it is verified
            summary[key] = record[key] | summary[key] | (record[key] if of == own else {})
        failed = any(finding["outcome"] == "failed" for finding in record.get("trust", []))
        verdict = summary["co"]["verdict"]
        if verdict is None or (failed and verdict != "overfitted"):  # the worst verdict stays
            summary["co"] = summary["co"] | {"verdict": record.get("verdict")}
    return summary


def printable(record: Record) -> Record:
    """Return a record without the predictions, which only programs read."""
    return {key: value for key, value in record.items() if key != "predictions"}


def find(records: list[Record], fingerprint: Fingerprint, threat: Threat) -> Record | None:
    """Return the record of these weights and examples under this threat."""
    key = (fingerprint, {"norm": threat.norm, "eps": threat.eps})
    return next((record for record in records if (record.get("fingerprint"), record["threat"]) == key), None)


def _number_type(num_classes: int) -> str:
    return "<u2" if num_classes <= 1 << 16 else "<u4"
