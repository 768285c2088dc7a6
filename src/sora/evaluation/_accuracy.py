"""Accuracy under attacks: the same batches and the same random numbers every time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sora._modes import frozen
from sora._seeds import mix
from sora.attacks import Attack, parse
from sora.errors import UserError
from sora.evaluation._examples import Data, examples
from sora.evaluation._result import Evaluation
from sora.methods._base import bare, check_inputs, check_logits
from sora.threat import Threat

BATCH = 250


def evaluate(
    model: nn.Module,
    data: Data,
    threat: Threat,
    attacks: Sequence[str | Attack] = ("clean", "fgsm", "pgd10"),
    *,
    batch_size: int = BATCH,
    seed: int = 0,
    device: torch.device | str | None = None,
    progress: bool = False,
) -> Evaluation:
    """Judge a model in evaluation mode; it is left in the mode it was in.

    Every attack draws from a stream named by (seed, attack, batch): run again the numbers are the same to
    the last digit, whatever else runs beside, and the caller's own random stream is not touched.

    Args:
        model: From inputs to logits.
        data: An `ImageSet`, a pair of tensors (inputs, labels), or an iterable of such batches.
        threat: The norm ball and the box.
        attacks: Names as `sora.attacks.parse` knows them.
        batch_size: Examples attacked together; part of what makes results repeatable.
        seed: Seed of the attacks' random starts.
        device: Where to compute; the model's own device if not given.
        progress: Show a progress bar.
    """
    if batch_size < 1:
        raise UserError(f"batch size {batch_size}; expected 1 or more")
    chosen = [parse(attack) if isinstance(attack, str) else attack for attack in attacks]
    found = examples(data)
    model, place = bare(model), torch.device(device) if device is not None else _device(model)
    model.to(place)
    with frozen(model):
        x, y = found.take(torch.arange(min(batch_size, len(found.labels))), place)
        check_inputs(x, y, threat)
        with torch.no_grad():
            logits = model(x)
        check_logits(logits, found.labels)
        predictions: dict[str, Tensor] = {}
        for attack in chosen:
            parts: list[Tensor] = []
            for number, positions in enumerate(torch.split(torch.arange(len(found.labels)), batch_size)):
                x, y = found.take(positions, place)
                x_adv = attack(model, x, y, threat, mix(seed, attack.stream, number))
                parts.append(_predict(model, x_adv))
            predictions[attack.name] = torch.cat(parts).cpu()
    return Evaluation(
        threat=threat,
        labels=found.labels,
        num_classes=logits.shape[1],
        predictions=predictions,
        settings={attack.name: attack.settings(threat) for attack in chosen},
    )


def _predict(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(x)
    if bool(logits.isnan().any()):
        raise UserError("the model returns NaN for some inputs; an accuracy of it would mean nothing")
    return logits.argmax(1)


def _device(model: nn.Module) -> torch.device:
    return next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
