"""Attacked images in a file, and the check of such a file against a model, this one or another."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sora._passes import frozen
from sora.data import Dataset
from sora.errors import UserError
from sora.evaluation._checks import predicted_classes
from sora.evaluation.accuracy import BATCH, device_of
from sora.evaluation.adversaries import check_attacked
from sora.evaluation.examples import as_examples, in_precision_of
from sora.evaluation.result import Evaluation
from sora.threat import threat

PREFIX = "adversarial_"  # of the array of an attack


def save_adversarial(
    path: str | Path, evaluation: Evaluation, positions: Tensor, about: Mapping[str, Any]
) -> None:
    """Write the attacked images of an evaluation that kept them.

    The file holds `labels`, `positions` in the test set, one float array `adversarial_NAME` per attack, and
    `about`: the threat, the attacks' settings and further facts as JSON.
    """
    own = evaluation.threat
    facts = {
        "threat": {"norm": own.norm, "eps": own.eps, "given": own.given, "box": own.box},
        "attacks": {name: evaluation.settings[name] for name in evaluation.inputs},
        **about,
    }
    arrays: dict[str, Any] = {f"{PREFIX}{name}": x.numpy() for name, x in evaluation.inputs.items()}
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            np.savez(
                file,
                labels=evaluation.labels.numpy(),
                positions=positions.numpy(),
                about=np.array(json.dumps(facts)),
                **arrays,
            )
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def check_adversarial(
    path: str | Path,
    model: nn.Module,
    dataset: Dataset,
    *,
    batch_size: int = BATCH,
    device: torch.device | str | None = None,
) -> Evaluation:
    """Accuracy of a model on attacked images from a file, each inside the ball around its test image.

    Args:
        path: What `save_adversarial` wrote.
        model: From inputs to logits; the attacked one or another.
        dataset: The data set whose test images were attacked.
        batch_size: Images per pass.
        device: Where to compute; the model's own device if not given.
    """
    arrays = _read(Path(path))
    facts = json.loads(str(arrays["about"]))
    positions = torch.from_numpy(arrays["positions"])
    if len(positions) and int(positions.max()) >= len(dataset.test):
        raise UserError(f"{path} holds images that {dataset.name}'s test set does not have")
    images = dataset.test.subset(positions)
    if not torch.equal(images.labels, torch.from_numpy(arrays["labels"])):
        raise UserError(f"{path} belongs to other images: its labels are not those of {dataset.name}")
    ball = threat(facts["threat"]["norm"], facts["threat"]["given"], facts["threat"]["box"])
    target = device_of(model) if device is None else torch.device(device)
    model.to(target)
    examples = in_precision_of(model, as_examples(images))
    predictions: dict[str, Tensor] = {}
    classes = 0
    with frozen(model), torch.no_grad():
        for name in facts["attacks"]:
            attacked, parts = torch.from_numpy(arrays[f"{PREFIX}{name}"]), []
            for rows in torch.split(torch.arange(len(positions)), batch_size):
                x, _ = examples.take(rows, target)
                x_adv = attacked[rows].to(x)
                check_attacked(f"{name} in {path}", x, x_adv, ball)
                logits = model(x_adv)
                classes = logits.shape[1]
                parts.append(predicted_classes(logits).cpu())
            predictions[name] = torch.cat(parts)
    return Evaluation(ball, images.labels, classes, predictions, facts["attacks"])


def _read(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except Exception as error:  # a damaged one makes NumPy, zipfile and zlib raise many kinds
        raise UserError(f"{path} is not a file of attacked images ({error})") from None
    missing = {"labels", "positions", "about"} - arrays.keys()
    if missing:
        raise UserError(f"{path} is not a file of attacked images: it has no {', '.join(sorted(missing))}")
    return arrays
