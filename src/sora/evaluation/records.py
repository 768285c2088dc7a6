"""The evaluation records of a folder: merged over all evaluations, nothing is measured twice."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn

from sora.attacks import Attack
from sora.data import ImageSet
from sora.evaluation.accuracy import BATCH, evaluate
from sora.evaluation.examples import as_examples
from sora.evaluation.fingerprints import data_fingerprint, evaluation_fingerprint, weights_fingerprint
from sora.evaluation.reliability import warnings_about
from sora.evaluation.result import Evaluation
from sora.runs import RunFolder
from sora.threat import Threat

Record = dict[str, Any]


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
    """
    examples = as_examples(data)
    fingerprint = {
        "weights": weights_fingerprint(model),
        "data": data_fingerprint(examples),
        "seed": seed,
        "batch_size": batch_size,
    }
    evaluations = []
    for threat in threats:
        record = find(folder.read_evaluations(), fingerprint, threat)
        evaluation = None if record is None else restore(record, examples.labels, threat)
        missing = [attack for attack in attacks if evaluation is None or not evaluation.has(attack)]
        if evaluation is None or missing:
            new = evaluate(
                model,
                data,
                threat,
                missing,
                batch_size=batch_size,
                seed=seed,
                num_classes=num_classes,
                device=device,
                progress=progress,
                state=folder.evaluation_state,
                shard=shard,
            )
            evaluation = new if evaluation is None else evaluation.merged(new)
            if not shard or distributed.get_rank() == 0:
                save(folder, {**(about or {}), **full_record(evaluation), "fingerprint": fingerprint})
                finished = evaluation_fingerprint(model, examples, threat, seed, batch_size)
                _remove_state(folder, finished)
        evaluations.append(evaluation)
    return evaluations


def full_record(evaluation: Evaluation) -> Record:
    """All numbers of an evaluation, and the predictions they come from."""
    names = list(evaluation.predictions)
    return {
        **evaluation.record(),
        "worst_case": evaluation.worst_case,
        "per_class": {name: evaluation.per_class(name) for name in names},
        "confusion": {name: evaluation.confusion(name).tolist() for name in names},
        "zero_gradients": evaluation.zero_gradients,
        "warnings": warnings_about(evaluation),
        "num_classes": evaluation.num_classes,
        "predictions": {name: _pack(evaluation.predictions[name]) for name in names},
    }


def restore(record: Record, labels: Tensor, threat: Threat) -> Evaluation:
    """The evaluation that a record was written from."""
    counts = ("n", "low", "high")
    settings = {
        name: {key: value for key, value in attack.items() if key not in counts}
        for name, attack in record["attacks"].items()
    }
    predictions = {name: _unpack(text) for name, text in record["predictions"].items()}
    return Evaluation(threat, labels, record["num_classes"], predictions, settings, record["zero_gradients"])


def save(folder: RunFolder, record: Record) -> None:
    """Add a record, or update the one with the same fingerprint and threat."""
    records = folder.read_evaluations()
    same = [other for other in records if _key(other) == _key(record)]
    if same:
        same[0] |= record
    else:
        records.append(record)
    folder.write_evaluations(records)


def find(records: list[Record], fingerprint: Mapping[str, Any], threat: Threat) -> Record | None:
    """The record of these weights and examples under this threat."""
    key = (dict(fingerprint), threat.norm, threat.eps)
    return next((record for record in records if _key(record) == key), None)


def _key(record: Record) -> tuple[Any, ...]:
    threat = record.get("threat", {})
    return record.get("fingerprint"), threat.get("norm"), threat.get("eps")


def _pack(predictions: Tensor) -> str:
    return base64.b64encode(predictions.numpy().astype("<u2").tobytes()).decode()


def _unpack(text: str) -> Tensor:
    return torch.from_numpy(np.frombuffer(base64.b64decode(text), "<u2").astype(np.int64))


def _remove_state(folder: RunFolder, name: str) -> None:
    """Delete the stored units of an evaluation that is now a record."""
    shutil.rmtree(folder.evaluation_state / name)
    if not any(folder.evaluation_state.iterdir()):
        folder.evaluation_state.rmdir()
