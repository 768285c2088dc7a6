"""Attacked images in a file, and the check of such a file against a model, this one or another."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from sora._files import TEXT, parse_json, replace_file
from sora._passes import frozen
from sora._task import PLAIN
from sora.data import Dataset, ImageSet
from sora.data.npz import ArrayArchive
from sora.errors import UserError
from sora.evaluation.accuracy import BATCH, placed
from sora.evaluation.examples import as_examples, in_precision_of
from sora.evaluation.scores import Evaluation
from sora.evaluation.validity import answers_of, check_attacked
from sora.runs.facts import shape
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
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    attacked = {f"{PREFIX}{name}": x.numpy() for name, x in evaluation.inputs.items()}
    images = {"labels": evaluation.labels.numpy(), "positions": positions.numpy()}
    arrays: dict[str, Any] = {**images, "about": np.array(json.dumps(facts)), **attacked}

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:  # NumPy would add .npz to a path without it
            np.savez(file, **arrays)

    replace_file(path, write)


def check_adversarial(
    path: str | Path,
    model: nn.Module,
    dataset: Dataset,
    *,
    batch_size: int = BATCH,
    device: torch.device | str | None = None,
) -> Evaluation:
    """Evaluate a model on attacked images from a file, each inside the ball around its test image.

    The model may be the attacked one or another; `dataset` has the test images that were attacked. In the
    result the names of attacks begin with `file:`, because nothing proves what the file says about them.
    """
    file, facts, images = _read(Path(path), dataset)
    ball = threat(facts["threat"]["norm"], facts["threat"]["given"])
    target = placed(model, device)
    examples = in_precision_of(model, as_examples(images))
    predictions, settings = dict[str, Tensor](), dict[str, dict[str, Any]]()
    classes = 0
    with frozen(model), torch.no_grad():
        for name, own in facts["attacks"].items():
            attacked, parts = torch.from_numpy(file.array(f"{PREFIX}{name}")), []
            for rows in torch.split(torch.arange(len(images)), batch_size):
                x, y = examples.take(rows, target)
                x_adv = attacked[rows].to(x)
                check_attacked(f"{name} in {path}", x, x_adv, ball)
                logits = model(x_adv)
                classes = logits.shape[1]
                parts.append(answers_of(PLAIN, logits, y).cpu())
            predictions[f"file:{name}"] = torch.cat(parts)
            settings[f"file:{name}"] = {key: own[key] for key in _SHOWN if key in own}
    return Evaluation(ball, images.labels, classes, predictions, settings, doubts=[UNPROVEN])


UNPROVEN = "names and settings of attacks are what the file says; only the images themselves were checked"
# What a file may say about its attacks.
_SHOWN = ("norm", "eps", "steps", "step_size", "restarts", "seed", "batch_size")


_ATTACKS = Annotated[dict[str, dict[str, Any]], msgspec.Meta(min_length=1)]
_FACTS = shape({"threat": shape({"norm": str, "given": str | float}), "attacks": _ATTACKS})


def _read(path: Path, dataset: Dataset) -> tuple[ArrayArchive, dict[str, Any], ImageSet]:
    """Check a file, which may come from anybody, and return it with its facts and the original images."""
    file = ArrayArchive(path)
    missing = {"labels", "positions", "about"} - file.headers.keys()
    if missing:
        raise UserError(f"{path} is not a file of attacked images: it has no {', '.join(sorted(missing))}")
    if file.headers["about"].nbytes > TEXT.value:
        raise TEXT.refusal(f"{path}: its array about")
    try:
        facts: dict[str, Any] = parse_json(str(file.array("about")))
        msgspec.convert(facts, _FACTS)
    except ValueError as error:
        raise UserError(f"{path} is not a file of attacked images: about: {error}") from None
    count = file.headers["positions"].shape[:1]
    for name in ("positions", "labels"):
        header = file.headers[name]
        if header.dtype.kind not in "iu" or header.shape != count or count in ((), (0,)):
            raise UserError(f"{path}: {name} are {header.dtype} {header.shape}; expected integers (N)")
    chosen = file.array("positions")
    if chosen.min() < 0 or chosen.max() >= len(dataset.test):
        raise UserError(f"{path} holds images that {dataset.name}'s test set does not have")
    if len(np.unique(chosen)) < len(chosen):
        raise UserError(f"{path} holds some images of {dataset.name}'s test set more than once")
    images = dataset.test.subset(torch.from_numpy(chosen.astype(np.int64)))
    if not np.array_equal(images.labels.numpy(), file.array("labels")):
        raise UserError(f"{path} belongs to other images: its labels are not those of {dataset.name}")
    height, width, channels = images.images.shape[1:]
    shape = (*count, channels, height, width)
    for key in (f"{PREFIX}{name}" for name in facts["attacks"]):
        array = file.headers.get(key)
        if array is None or array.dtype not in ("float16", "float32", "float64") or array.shape != shape:
            found = "missing" if array is None else f"{array.dtype} {array.shape}"
            raise UserError(f"{path}: {key} is {found}; expected floating-point numbers {shape}")
    return file, facts, images
