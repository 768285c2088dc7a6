"""The images that fall: classified correctly, until PGD-10 changes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from sora._passes import frozen
from sora._seeds import mix
from sora.attacks import pgd
from sora.evaluation import BATCH
from sora.evaluation.progress import progress_bar
from sora.probes._base import Probe, ProbedModel, Result
from sora.probes._registry import register

LARGEST = 64  # pixels per side of an image as it is stored and drawn


@register("fallen", "images that are classified correctly until PGD-10 changes them", images=500)
@dataclass(frozen=True)
class Fallen(Probe[ProbedModel]):
    """Which images fall and what they are taken for; the first ones are kept for the picture.

    Attributes:
        shown: Number of images in the picture.
        batch_size: Images attacked together.
    """

    shown: int = 10
    batch_size: int = BATCH

    def measure(self, subject: ProbedModel) -> Result:
        """The position of every fallen image, its class and the class it is taken for."""
        model, examples, threat = subject.network, subject.examples(), subject.threat
        batches = torch.split(torch.arange(len(examples.labels)), self.batch_size)
        fallen: list[Result] = []
        correct = 0
        with frozen(model), progress_bar("fallen", len(batches), subject.progress) as advance:
            for number, positions in enumerate(batches):
                x, y = examples.take(positions, subject.device)
                generator = torch.Generator(x.device).manual_seed(mix(subject.seed, number))
                adversarial = pgd(model, x, y, threat, generator=generator)
                with torch.no_grad():
                    right, taken = model(x).argmax(1) == y, model(adversarial).argmax(1)
                correct += int(right.sum())
                for k in (right & (taken != y)).nonzero()[:, 0].tolist():
                    entry: Result = {
                        "image": int(positions[k]),
                        "label": int(y[k]),
                        "taken_for": int(taken[k]),
                    }
                    if len(fallen) < self.shown:
                        entry |= {"clean": _pixels(x[k]), "adversarial": _pixels(adversarial[k])}
                    fallen.append(entry)
                advance()
        return {
            "threat": {"norm": threat.norm, "eps": threat.eps},
            "n": len(examples.labels),
            "correct": correct,
            "fallen": fallen,
        }

    def picture(self, results: Mapping[str, Result], file: Path) -> None:
        """Per run three rows: the clean images, the attacked ones, and the difference amplified."""
        from sora._drawing import plt, save

        columns = max(1, *(len(_kept(result)) for result in results.values()))
        rows = 3 * len(results)
        figure, grid = plt.subplots(
            rows, columns, figsize=(max(5.0, 1.5 * columns + 1.2), 1.65 * rows + 0.5), squeeze=False
        )
        figure.set_layout_engine("constrained")
        for panel in grid.flat:
            panel.set(xticks=[], yticks=[])
            panel.spines[:].set_visible(False)
        for number, (name, result) in enumerate(results.items()):
            own, kept = grid[3 * number : 3 * number + 3], _kept(result)
            delta = [_image(entry["adversarial"]) - _image(entry["clean"]) for entry in kept]
            factor = 0.5 / max([float(each.abs().max()) for each in delta] + [1e-6])
            for row, text in zip(own, ("clean", "attacked", f"difference x {factor:.0f}"), strict=True):
                row[0].set_ylabel(f"{name}\n{text}", fontsize=9)
            for column, (entry, change) in enumerate(zip(kept, delta, strict=True)):
                drawn = (_image(entry["clean"]), _image(entry["adversarial"]), 0.5 + factor * change)
                for row, image in zip(own, drawn, strict=True):
                    row[column].imshow(image.expand(-1, -1, 3).clamp(0, 1).numpy(), interpolation="nearest")
                own[0][column].set_title(f"class {entry['label']}", fontsize=9)
                own[1][column].set_title(f"taken for {entry['taken_for']}", fontsize=9)
        save(figure, file)

    def sentence(self, result: Result) -> str:
        """How many of the correctly classified images fall."""
        count, correct = len(result["fallen"]), result["correct"]
        share = f" ({100 * count / correct:.1f} %)" if correct else ""
        n = result["n"]
        return f"{count} of {correct} correctly classified images fall under PGD-10{share} (n = {n})"


def _kept(result: Result) -> list[Result]:
    return [entry for entry in result["fallen"] if "clean" in entry]


def _pixels(image: Tensor) -> list[list[list[int]]]:
    """An image as whole numbers (H, W, C), made smaller if it is large."""
    side = max(image.shape[-2:])
    if side > LARGEST:
        image = F.interpolate(image[None], scale_factor=LARGEST / side, mode="area")[0]
    levels: list[list[list[int]]] = (image * 255).round().clamp(0, 255).int().permute(1, 2, 0).tolist()
    return levels


def _image(pixels: list[list[list[int]]]) -> Tensor:
    return torch.tensor(pixels, dtype=torch.float32) / 255
