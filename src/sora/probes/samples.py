"""Test images of as many classes as possible, clean and attacked, with both predictions (Figure 9)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from sora._passes import frozen
from sora.attacks import fgsm
from sora.figures import Figure, Panel
from sora.probes._base import Probe, ProbedModel, Result, register
from sora.probes._images import image_rows, pixels


@register(
    "samples", "test images clean, attacked by FGSM and the difference, with the predictions", images=10
)
@dataclass(frozen=True)
class Samples(Probe[ProbedModel]):
    """The images themselves, their classes, and what the model takes them for before and after FGSM."""

    def measure(self, subject: ProbedModel) -> Result:
        """All images, which are class-balanced and so as different as possible."""
        model, threat = subject.bare_model, subject.threat
        with frozen(model):
            x, y = subject.all_images()
            attacked = fgsm(model, x, y, threat)
            with torch.no_grad():
                before, after = (model(images).argmax(1).tolist() for images in (x, attacked))
        samples = [
            {
                "label": label,
                "clean_class": before[k],
                "attacked_class": after[k],
                "clean": pixels(x[k]),
                "attacked": pixels(attacked[k]),
            }
            for k, label in enumerate(y.tolist())
        ]
        return {
            "threat": {"norm": threat.norm, "eps": threat.eps},
            "n": len(samples),
            "classes": list(subject.classes),
            "samples": samples,
        }

    def figure(self, results: Mapping[str, Result]) -> Figure:
        """Per run three rows: the clean images, the attacked ones, and the difference amplified."""
        columns = max(len(result["samples"]) for result in results.values())
        panels: list[Panel | None] = []
        for name, result in results.items():
            for row in image_rows(name, result["samples"], result.get("classes", ())):
                panels += [*row, *[None] * (columns - len(row))]
        return Figure(panels, columns=columns, width=max(1.35, 5.0 / columns), height=1.6)

    def sentence(self, result: Result) -> str:
        """How many predictions are correct before and after the attack."""
        samples, n = result["samples"], result["n"]
        right = [
            sum(sample[key] == sample["label"] for sample in samples)
            for key in ("clean_class", "attacked_class")
        ]
        return f"of {n} images {right[0]} are classified correctly, {right[1]} after FGSM"
