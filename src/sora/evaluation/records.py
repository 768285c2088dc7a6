"""The evaluation records of a folder: merged over all evaluations, nothing is measured twice."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn

from sora._files import locked
from sora.attacks import Attack, create
from sora.data import ImageSet
from sora.errors import UserError
from sora.evaluation.accuracy import BATCH, evaluate
from sora.evaluation.adversaries import AllVoid, AttackFailed
from sora.evaluation.examples import as_examples
from sora.evaluation.fingerprints import (
    Fingerprint,
    fingerprint_of,
    state_name,
    weights_fingerprint,
    weights_fingerprint_of_file,
)
from sora.evaluation.reliability import warnings_about
from sora.evaluation.result import Evaluation
from sora.evaluation.trust import Finding
from sora.evaluation.units import remove_units
from sora.runs import RunFolder
from sora.threat import Threat

Record = dict[str, Any]
CONFUSION = 1000  # classes up to which the confusion matrix is stored; it grows with their square


def evaluate_into(
    folder: RunFolder,
    model: nn.Module,
    data: ImageSet | tuple[Tensor, Tensor],
    threats: Sequence[Threat],
    attacks: Sequence[Attack],
    *,
    about: Mapping[str, Any] | None = None,
    batch_size: int = BATCH,
    seed: int = 0,
    num_classes: int | None = None,
    device: torch.device | str | None = None,
    progress: bool = False,
    shard: bool = False,
    network: Mapping[str, Any] | None = None,
    keep_inputs: bool = False,
    trust: bool = False,
    trust_source: nn.Module | None = None,
) -> list[Evaluation]:
    """Run the attacks that the folder has no record of yet, and add their results to its records.

    Interrupted at any moment and called again, it continues from the last finished unit. With `shard` all
    processes must have access to the same folder.

    Args:
        folder: Where the records are, or will be.
        model: From inputs to logits.
        data: The examples.
        threats: There is one record for each.
        attacks: What to run under each threat.
        about: Facts about the model that are stored in new records.
        batch_size: As for `evaluate`.
        seed: As for `evaluate`.
        num_classes: As for `evaluate`.
        device: As for `evaluate`.
        progress: As for `evaluate`.
        shard: As for `evaluate`.
        network: As for `evaluate`; stored in the records.
        keep_inputs: As for `evaluate`; attacks that have a record are then run again.
        trust: As for `evaluate`; tests that have a record are run again only if a second model is given.
        trust_source: As for `evaluate`.

    Raises:
        AttackFailed: As for `evaluate`; the results of the other attacks are recorded.
    """
    examples = as_examples(data)
    evaluations, failed = list[Evaluation](), list[str]()
    first = examples.take(torch.arange(1), torch.device("cpu"))
    for threat, attack in itertools.product(threats, attacks):  # before hours are spent on the others
        attack.check(*first, threat)
    for threat in threats:
        fingerprint = fingerprint_of(
            model, examples, threat, seed=seed, batch_size=batch_size, network=network
        )
        record = find(folder.read_evaluations(), fingerprint, threat)
        evaluation = None if record is None else restore(record, examples.labels, threat)
        missing = [each for each in attacks if evaluation is None or keep_inputs or not evaluation.has(each)]
        tests = trust and (evaluation is None or not evaluation.trust or trust_source is not None)
        if missing or tests:
            try:
                new = evaluate(
                    model,
                    data,
                    threat,
                    missing or [create("clean")],
                    batch_size=batch_size,
                    seed=seed,
                    num_classes=num_classes,
                    device=device,
                    progress=progress,
                    state=folder.evaluation_state,
                    shard=shard,
                    network=network,
                    keep_inputs=keep_inputs,
                    trust=tests,
                    trust_source=trust_source,
                )
            except AllVoid as error:
                if evaluation is None and len(threats) == 1:
                    raise
                if evaluation is None:
                    failed += [f"{threat.norm} eps {threat.given}: {error}"]
                    continue
                new = evaluation.with_void(error.void, error.versions)
                if not new.predictions:
                    raise
            except AttackFailed as error:
                failed += error.reasons
                if not error.finished:
                    evaluations += [] if evaluation is None else [evaluation]
                    continue
                (new,) = error.finished
            if weights_fingerprint(model) != fingerprint["weights"]:
                raise UserError("the model changes its own weights or buffers while it is evaluated")
            facts = {**(about or {}), "network": _network_facts(model, network, fingerprint)}
            evaluation = new if evaluation is None else evaluation.merged(new)
            if not shard or distributed.get_rank() == 0:
                evaluation = save(folder, evaluation, facts)
        assert evaluation is not None
        if not shard or distributed.get_rank() == 0:  # also what a kill right after `save` left
            recorded = [*evaluation.predictions, *evaluation.void]
            remove_units(folder.evaluation_state / state_name(evaluation.fingerprint, threat), recorded)
        evaluations.append(evaluation)
    if failed:
        raise AttackFailed(failed, evaluations)
    return evaluations


def _network_facts(
    model: nn.Module, network: Mapping[str, Any] | None, fingerprint: Fingerprint
) -> dict[str, Any]:
    named = network or {"name": f"{type(model).__module__}.{type(model).__qualname__}"}
    return {**named, "fingerprint": fingerprint["network"]}


def full_record(evaluation: Evaluation) -> Record:
    """All numbers of an evaluation, and the predictions they come from."""
    names, record = list(evaluation.predictions), evaluation.record()
    small = evaluation.num_classes <= CONFUSION
    for name, attack in record["attacks"].items():
        attack["versions"] = evaluation.versions.get(name)  # null in what an older version measured
    return {
        **record,
        "verdict": evaluation.verdict,
        "worst_case": evaluation.worst_case,
        "per_class": {name: evaluation.per_class(name) for name in names},
        "confusion": {name: evaluation.confusion(name).tolist() for name in names if small},
        "zero_gradients": evaluation.zero_gradients,
        "nonnegative": evaluation.nonnegative,
        "randomised": evaluation.randomised,
        "dynamic": evaluation.dynamic,
        "void": dict(evaluation.void),
        "void_versions": {name: evaluation.versions.get(name) for name in evaluation.void},
        "warnings": warnings_about(evaluation),
        "trust": [finding.record() for finding in evaluation.trust],
        "num_classes": evaluation.num_classes,
        "fingerprint": dict(evaluation.fingerprint),
        "predictions": {name: _pack(evaluation.predictions[name], evaluation.num_classes) for name in names},
    }


def restore(record: Record, labels: Tensor, threat: Threat) -> Evaluation:
    """The evaluation that a record was written from."""
    computed = ("n", "low", "high", "versions")
    settings = {
        name: {key: value for key, value in attack.items() if key not in computed}
        for name, attack in record["attacks"].items()
    }
    return Evaluation(
        threat,
        labels,
        record["num_classes"],
        predictions={
            name: _unpack(text, record["num_classes"]) for name, text in record["predictions"].items()
        },
        settings=settings,
        zero_gradients=record["zero_gradients"],
        nonnegative=record.get("nonnegative", False),
        randomised=record.get("randomised", False),
        dynamic=record.get("dynamic", False),
        void=record.get("void", {}),
        versions={
            name: attack["versions"] for name, attack in record["attacks"].items() if attack.get("versions")
        }
        | {name: versions for name, versions in record.get("void_versions", {}).items() if versions},
        fingerprint=record["fingerprint"],
        trust=[Finding(**finding) for finding in record.get("trust", [])],
    )


def save(folder: RunFolder, evaluation: Evaluation, facts: Mapping[str, Any]) -> Evaluation:
    """Add the record of an evaluation to a folder and return all that the record holds now.

    Another process may have added results since the records were read: they are read again under a lock and
    merged, so that nothing is lost.
    """
    folder.path.mkdir(parents=True, exist_ok=True)
    with locked(folder.evaluation_lock):
        records = folder.read_evaluations()
        present = find(records, evaluation.fingerprint, evaluation.threat)
        if present is not None:
            stored = restore(present, evaluation.labels, evaluation.threat)
            evaluation = stored.merged(evaluation)
        record = {**facts, **full_record(evaluation)}
        if present is None:
            records.append(record)
        else:
            present |= record
        folder.write_evaluations(records)
    return evaluation


def with_later_results(folder: RunFolder) -> Record:
    """The summary of a run, completed by what was evaluated after it: the same weights, images and threat.

    Results of the run itself come first; others of the same attack, with another seed, do not replace them.
    """
    summary = folder.read_summary()
    own = summary.get("fingerprint") or {}
    weights = own.get("weights") or weights_fingerprint_of_file(folder.weights)
    threat, sizes = summary["threat"], {attack["n"] for attack in summary["attacks"].values()}
    for record in folder.read_evaluations():
        of = record.get("fingerprint") or {}
        same_data = of.get("data") == own["data"] if own else record.get("dataset") == summary["dataset"]
        same = same_data and of.get("weights") == weights and record["threat"] == threat
        evaluated = {attack["n"] for attack in record["attacks"].values()}
        if not same or (sizes and evaluated != sizes):  # a run without attacks takes any
            continue
        sizes = evaluated
        summary["accuracy"] = record["accuracy"] | summary["accuracy"]
        summary["attacks"] = record["attacks"] | summary["attacks"]
        failed = any(finding["outcome"] == "failed" for finding in record.get("trust", []))
        verdict = summary["co"]["verdict"]
        if verdict is None or (failed and verdict != "overfitted"):  # the worst verdict stays
            summary["co"] = summary["co"] | {"verdict": record.get("verdict")}
    return summary


def printable(record: Record) -> Record:
    """A record without the predictions, which only programs read."""
    return {key: value for key, value in record.items() if key != "predictions"}


def find(records: list[Record], fingerprint: Mapping[str, Any], threat: Threat) -> Record | None:
    """The record of these weights and examples under this threat."""
    key = (dict(fingerprint), threat.norm, threat.eps)
    return next((record for record in records if _key(record) == key), None)


def _key(record: Record) -> tuple[Any, ...]:
    threat = record.get("threat", {})
    return record.get("fingerprint"), threat.get("norm"), threat.get("eps")


def _pack(predictions: Tensor, num_classes: int) -> str:
    return base64.b64encode(predictions.numpy().astype(_number_type(num_classes)).tobytes()).decode()


def _unpack(text: str, num_classes: int) -> Tensor:
    numbers = np.frombuffer(base64.b64decode(text), _number_type(num_classes))
    return torch.from_numpy(numbers.astype(np.int64))


def _number_type(num_classes: int) -> str:
    return "<u2" if num_classes <= 1 << 16 else "<u4"
