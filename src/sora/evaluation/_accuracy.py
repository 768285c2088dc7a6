"""Accuracy under attacks: the same batches and the same random numbers every time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from sora._passes import bare, frozen
from sora.attacks import Attack, create_all
from sora.errors import UserError
from sora.evaluation._checks import inspect
from sora.evaluation._examples import Data, examples
from sora.evaluation._identity import identity
from sora.evaluation._progress import Meter
from sora.evaluation._result import Evaluation
from sora.evaluation._units import Judge, UnitStore
from sora.threat import Threat

BATCH = 250


def evaluate(
    model: nn.Module,
    data: Data,
    threat: Threat,
    attacks: str | Sequence[str | Attack] = ("clean", "fgsm", "pgd10"),
    *,
    batch_size: int = BATCH,
    seed: int = 0,
    num_classes: int | None = None,
    device: torch.device | str | None = None,
    progress: bool = False,
    state: Path | str | None = None,
    shard: bool = False,
) -> Evaluation:
    """Judge a model in evaluation mode; it is left in the mode it was in.

    Every attack draws from a stream named by (seed, attack, batch): run again the numbers are the same to
    the last digit, whatever else runs beside, and the caller's own random stream is not touched.

    Args:
        model: From inputs to logits; moved to `device` if one is given.
        data: An `ImageSet`, a pair of tensors (inputs, labels), or an iterable of such batches, which is
            read into memory.
        threat: The norm ball and the box.
        attacks: Names as `sora.attacks.create` knows them.
        batch_size: Examples attacked together; it sets the memory, and is part of what is repeatable.
        seed: Seed of the attacks' random numbers.
        num_classes: How many classes the data has; a model with another number of them is refused.
        device: Where to compute; the model's own device if not given.
        progress: Show a progress bar with the time that is left.
        state: Folder that keeps finished units of work. The same evaluation started again after any
            interruption goes on there and ends with the same result; another one does not touch it.
        shard: Split the work over the processes of torch.distributed, which must all make this call and
            all get the whole result, the same as of one process.
    """
    if batch_size < 1:
        raise UserError(f"batch size {batch_size}; expected 1 or more")
    chosen, found, model = create_all(attacks), examples(data), bare(model)
    place = torch.device(device) if device is not None else _device(model)
    model.to(place)
    with frozen(model), Meter(model, progress) as meter:
        x, y = found.take(torch.arange(min(batch_size, len(found.labels))), place)
        seen = inspect(model, x, y, found.labels, threat, num_classes)
        chosen = [attack.for_classes(seen.num_classes) for attack in chosen]
        name = "" if state is None else identity(model, found, threat, seed, batch_size)
        store = UnitStore(None if state is None else Path(state) / name)
        judge = Judge(
            model,
            found,
            threat,
            place,
            batch_size=batch_size,
            seed=seed,
            store=store,
            meter=meter,
            shard=shard,
        )
        predictions = judge.run(chosen)
    return Evaluation(
        threat=threat,
        labels=found.labels,
        num_classes=seen.num_classes,
        predictions=predictions,
        settings={attack.name: attack.settings(threat) for attack in chosen},
        zero_gradients=seen.zero_gradients,
    )


def _device(model: nn.Module) -> torch.device:
    return next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
