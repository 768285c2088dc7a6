"""The class that a trained model predicts for single images, and whether an attack changes it."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sora._passes import frozen
from sora._task import PLAIN
from sora.attacks import Attack
from sora.data.image_files import decode
from sora.errors import UserError
from sora.evaluation.accuracy import BATCH, device_of
from sora.threat import Threat


@dataclass(frozen=True)
class Prediction:
    """The answer for one image file."""

    image: str
    predicted: str
    probability: float
    attacked: str  # the predicted class of the attacked image

    @property
    def flips(self) -> bool:
        """Whether the attack changes the answer."""
        return self.attacked != self.predicted

    def record(self) -> dict[str, Any]:
        """Return the answer in the form that JSON has."""
        keys = ("image", "class", "probability", "class_under_attack")
        return dict(zip(keys, astuple(self), strict=True)) | {"flips": self.flips}


def predict(
    model: nn.Module,
    description: Mapping[str, Any],
    files: Sequence[str],
    threat: Threat,
    attack: Attack,
    *,
    size: tuple[int, int],
    stored: tuple[int, int],
) -> tuple[list[Prediction], list[str]]:
    """Classify image files, and attack each away from the predicted class: true classes are not known.

    Images are brought to the model's number of channels and, if it is square, its size. `description` is the
    content of `model.json`, `size` the height and width of the images that the model was tested on, `stored`
    that of the images in the data set, whose centre the test took. Besides the answers, return what is wrong
    with each file that cannot be read; the others are still classified.
    """
    classes, device = description["classes"], device_of(model)
    results, problems = list[Prediction](), list[str]()
    for start in range(0, len(files), BATCH):
        names, images = list[str](), list[Tensor]()
        for name in files[start : start + BATCH]:
            try:
                images.append(_read(name, description, size, stored))
                names.append(name)
            except UserError as error:
                problems.append(str(error))
        if not images:
            continue
        x = torch.stack(images).to(device)
        with frozen(model), PLAIN.reading(model):
            with torch.no_grad():
                probabilities, predicted = model(x).softmax(1).max(1)
            adversarial = attack(model, x, predicted, threat)
            with torch.no_grad():
                attacked = model(adversarial).argmax(1)
        numbers = (values.tolist() for values in (probabilities, predicted, attacked))
        for name, share, before, after in zip(names, *numbers, strict=True):
            results.append(Prediction(name, classes[before], share, classes[after]))
    return results, problems


def _read(
    file: str, description: Mapping[str, Any], size: tuple[int, int], stored: tuple[int, int]
) -> Tensor:
    """Read an image file as the model takes it: float (C, H, W) in [0, 1]."""
    if Path(file).is_dir():
        raise UserError(f"{file!r} is a folder; name its image files, e.g. {file.rstrip('/')}/*.png")
    if not Path(file).is_file():
        raise UserError(f"image {file!r} does not exist")
    mode = "grey" if description["in_channels"] == 1 else "rgb"
    height, width = size
    side = next((a for a, b in (stored, size) if a == b and a >= max(size)), None)
    try:
        pixels = decode(Path(file), size=side, mode=mode)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    if side is not None:  # the centre, as for the images of the test set
        top, left = (side - height) // 2, (side - width) // 2
        pixels = pixels[top : top + height, left : left + width]
    if pixels.shape[:2] != size:  # there is no one way to bring it to a size that is not square
        found = f"{pixels.shape[1]}x{pixels.shape[0]}"
        raise UserError(f"{file}: {found} pixels; the model was trained on {width}x{height}: resize it")
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1).float().div_(255).contiguous()
