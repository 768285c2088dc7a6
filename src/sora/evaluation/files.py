"""`evaluation.json`: everything ever measured of a model, merged; what is there is not measured again."""

from __future__ import annotations

import base64
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn

from sora._files import write_text
from sora.attacks import Attack
from sora.data import ImageSet
from sora.errors import RunError
from sora.evaluation._accuracy import BATCH, evaluate
from sora.evaluation._doubts import doubts
from sora.evaluation._examples import examples
from sora.evaluation._identity import data_digest, identity, weights_digest
from sora.evaluation._result import Evaluation
from sora.threat import Threat

FILE = "evaluation.json"
STATE = "evaluation-state"  # unfinished work, removed when it has become a record

Record = dict[str, Any]


def evaluate_into(
    folder: Path,
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
    """Run the attacks that a folder's `evaluation.json` does not have yet, and write what they add to it.

    Interrupted at any moment and called again it goes on where it was. With `shard` all processes must
    see the same folder.

    Args:
        folder: Where the file is, or will be.
        model: From inputs to logits.
        data: The examples.
        threats: One record is kept for each.
        attacks: What to run under each threat.
        about: What a reader should know about the model: written into new records.
        batch_size: As for `evaluate`.
        seed: As for `evaluate`.
        num_classes: As for `evaluate`.
        device: As for `evaluate`.
        progress: As for `evaluate`.
        shard: As for `evaluate`.
    """
    found = examples(data)
    stamp = {
        "weights": weights_digest(model),
        "data": data_digest(found),
        "seed": seed,
        "batch_size": batch_size,
    }
    results = []
    for threat in threats:
        old = find(read_records(folder / FILE), stamp, threat)
        known = None if old is None else restore(old, found.labels, threat)
        missing = [attack for attack in attacks if known is None or not known.has(attack)]
        if missing:
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
                state=folder / STATE,
                shard=shard,
            )
            known = new if known is None else known.merged(new)
            if not shard or distributed.get_rank() == 0:
                save_record(folder / FILE, {**(about or {}), **full_record(known), "fingerprint": stamp})
                shutil.rmtree(folder / STATE / identity(model, found, threat, seed, batch_size))
                _remove_if_empty(folder / STATE)
        assert known is not None
        results.append(known)
    return results


def full_record(found: Evaluation) -> Record:
    """All numbers of an evaluation, and the predictions they come from."""
    names = list(found.predictions)
    return {
        **found.record(),
        "worst_case": found.worst_case,
        "per_class": {name: found.per_class(name) for name in names},
        "confusion": {name: found.confusion(name).tolist() for name in names},
        "zero_gradients": found.zero_gradients,
        "warnings": doubts(found),
        "num_classes": found.num_classes,
        "predictions": {name: _pack(found.predictions[name]) for name in names},
    }


def restore(record: Record, labels: Tensor, threat: Threat) -> Evaluation:
    """The evaluation a record was made from."""
    counted = ("n", "low", "high")
    settings = {
        name: {key: value for key, value in found.items() if key not in counted}
        for name, found in record["attacks"].items()
    }
    predictions = {name: _unpack(text) for name, text in record["predictions"].items()}
    return Evaluation(threat, labels, record["num_classes"], predictions, settings, record["zero_gradients"])


def read_records(path: Path) -> list[Record]:
    """The records of an `evaluation.json`; none if there is no such file."""
    try:
        records = json.loads(path.read_text())
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise RunError(f"{path} is damaged ({error}); move it away to start a new one") from None
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise RunError(f"{path} is not a list of records; move it away to start a new one")
    return records


def save_record(path: Path, record: Record) -> None:
    """Add a record to the file, in the place of an older one about the same thing."""
    key = _key(record)
    records = read_records(path)
    places = [number for number, other in enumerate(records) if _key(other) == key]
    if places:
        records[places[0]] |= record
    else:
        records.append(record)
    lines = ",\n".join(json.dumps(plain(record), allow_nan=False) for record in records)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, f"[\n{lines}\n]\n")


def find(records: list[Record], stamp: Mapping[str, Any], threat: Threat) -> Record | None:
    """The record of these weights and examples under this threat."""
    wanted = (dict(stamp), threat.norm, threat.eps)
    return next((record for record in records if _key(record) == wanted), None)


def _key(record: Record) -> tuple[Any, ...]:
    threat = record.get("threat", {})
    return record.get("fingerprint"), threat.get("norm"), threat.get("eps")


def _pack(predictions: Tensor) -> str:
    return base64.b64encode(predictions.numpy().astype("<u2").tobytes()).decode()


def _unpack(text: str) -> Tensor:
    return torch.from_numpy(np.frombuffer(base64.b64decode(text), "<u2").astype(np.int64))


def plain(value: Any) -> Any:
    """NaN, of a class without examples, is null in files."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def _remove_if_empty(folder: Path) -> None:
    if not any(folder.iterdir()):
        folder.rmdir()
