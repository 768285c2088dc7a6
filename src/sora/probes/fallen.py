"""The images that fall: classified correctly, but not after PGD-10."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from sora._passes import frozen
from sora._seeds import mix
from sora.attacks import pgd
from sora.evaluation import BATCH
from sora.evaluation.progress import progress_bar
from sora.figures import Figure, Panel
from sora.probes._base import Probe, ProbedModel, Result, register
from sora.probes._images import image_rows, pixels


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
        model, examples, threat = subject.bare_model, subject.examples(), subject.threat
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
                        "image": subject.position(int(positions[k])),
                        "label": int(y[k]),
                        "taken_for": int(taken[k]),
                    }
                    if len(fallen) < self.shown:
                        entry |= {"clean": pixels(x[k]), "adversarial": pixels(adversarial[k])}
                    fallen.append(entry)
                advance()
        return {
            "threat": {"norm": threat.norm, "eps": threat.eps},
            "n": len(examples.labels),
            "correct": correct,
            "classes": list(subject.classes),
            "fallen": fallen,
        }

    def figure(self, results: Mapping[str, Result]) -> Figure:
        """Per run three rows: the clean images, the attacked ones, and the difference amplified."""
        columns = max(1, *(len(_kept(result)) for result in results.values()))
        panels: list[Panel | None] = []
        for name, result in results.items():
            for row in image_rows(name, _kept(result), result.get("classes", ())):
                panels += [*row, *[None] * (columns - len(row))]
        return Figure(panels, columns=columns, width=max(1.5, 5.0 / columns), height=1.65)

    def sentence(self, result: Result) -> str:
        """How many of the correctly classified images fall."""
        count, correct = len(result["fallen"]), result["correct"]
        share = f" ({100 * count / correct:.1f} %)" if correct else ""
        n = result["n"]
        return f"{count} of {correct} correctly classified images fall under PGD-10{share} (n = {n})"


def _kept(result: Result) -> list[Result]:
    kept = [entry for entry in result["fallen"] if "clean" in entry]
    return [
        entry | {"attacked": entry["adversarial"], "attacked_class": entry["taken_for"]} for entry in kept
    ]
