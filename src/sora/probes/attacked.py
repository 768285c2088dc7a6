"""Test images clean and attacked, with the predictions: some of each class, or those that fall (Figure 9)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from sora._passes import frozen
from sora._seeds import generator_for, mix
from sora.attacks import fgsm, pgd
from sora.evaluation import BATCH
from sora.evaluation.progress import progress_bar
from sora.figures import Figure, Panel, Picture
from sora.probes._base import Probe, ProbedModel, Result, register

ACROSS = 10  # images per row
LARGEST = 64  # pixels per side of an image as it is stored and drawn
LONGEST = 25  # characters of a class's name that fit above an image, in two lines
Pixels = list[list[list[int]]]  # (H, W, C), from 0 to 255


@register(
    "samples",
    "test images clean, attacked by FGSM and the difference, with the predictions",
    images=10,
    figures=(9,),
)
class Samples(Probe[ProbedModel]):
    """The images themselves, their classes, and what the model takes them for before and after FGSM."""

    def measure(self, subject: ProbedModel) -> Result:
        """Attack all images, which are class-balanced and so as different as possible."""
        model, threat = subject.bare_model, subject.threat
        with frozen(model):
            x, y = subject.all_images()
            attacked = fgsm(model, x, y, threat)
            with torch.no_grad():
                before, after = (model(images).argmax(1).tolist() for images in (x, attacked))
        samples = []
        for k, label in enumerate(y.tolist()):
            sample = {"label": label, "clean_class": before[k], "attacked_class": after[k]}
            samples.append(sample | {"clean": _pixels(x[k]), "attacked": _pixels(attacked[k])})
        return subject.facts(len(samples)) | {"classes": list(subject.classes), "samples": samples}

    def figure(self, results: Mapping[str, Result]) -> Figure:
        """Draw all images."""
        return _figure(results, {name: result["samples"] for name, result in results.items()})

    def sentence(self, result: Result) -> str:
        """Say how many predictions are correct before and after the attack."""
        right = [
            sum(sample[key] == sample["label"] for sample in result["samples"])
            for key in ("clean_class", "attacked_class")
        ]
        return f"of {result['n']} images {right[0]} are classified correctly, {right[1]} after FGSM"


@register("fallen", "images that are classified correctly until PGD-10 changes them", images=500)
@dataclass(frozen=True)
class Fallen(Probe[ProbedModel]):
    """Which images fall and what they are taken for; the first ones are kept for the picture."""

    shown: int = 10  # images in the picture
    batch_size: int = BATCH  # images attacked together

    def measure(self, subject: ProbedModel) -> Result:
        """Find the position of every fallen image, its class and the class it is taken for."""
        model, examples = subject.bare_model, subject.examples()
        batches = torch.split(torch.arange(len(examples.labels)), self.batch_size)
        fallen: list[Result] = []
        correct = 0
        with frozen(model), progress_bar("fallen", len(batches), subject.progress) as advance:
            for number, positions in enumerate(batches):
                x, y = examples.take(positions, subject.device)
                generator = generator_for(x.device, mix(subject.seed, number))
                adversarial = pgd(model, x, y, subject.threat, generator=generator)
                with torch.no_grad():
                    right, taken = model(x).argmax(1) == y, model(adversarial).argmax(1)
                correct += int(right.sum())
                for k in (right & (taken != y)).nonzero()[:, 0].tolist():
                    where = subject.position(int(positions[k]))
                    entry: Result = {"image": where, "label": int(y[k]), "taken_for": int(taken[k])}
                    if len(fallen) < self.shown:
                        entry |= {"clean": _pixels(x[k]), "adversarial": _pixels(adversarial[k])}
                    fallen.append(entry)
                advance()
        about = subject.facts(len(examples.labels)) | {"correct": correct}
        return about | {"classes": list(subject.classes), "fallen": fallen}

    def figure(self, results: Mapping[str, Result]) -> Figure:
        """Draw the images that were kept."""
        images: dict[str, list[Result]] = {name: [] for name in results}
        for name, result in results.items():
            for entry in (entry for entry in result["fallen"] if "clean" in entry):
                taken = {"attacked": entry["adversarial"], "attacked_class": entry["taken_for"]}
                images[name].append(entry | taken)
        return _figure(results, images)

    def sentence(self, result: Result) -> str:
        """Say how many of the correctly classified images fall."""
        count, correct, n = len(result["fallen"]), result["correct"], result["n"]
        share = f" ({100 * count / correct:.1f} %)" if correct else ""
        return f"{count} of {correct} correctly classified images fall under PGD-10{share} (n = {n})"


def _pixels(image: Tensor) -> Pixels:
    """Return an image (C, H, W) of [0, 1] as integers, made smaller if it is large."""
    side = max(image.shape[-2:])
    if side > LARGEST:
        image = F.interpolate(image[None], scale_factor=LARGEST / side, mode="area")[0]
    levels: Pixels = (image * 255).round().clamp(0, 255).int().permute(1, 2, 0).tolist()
    return levels


def _figure(results: Mapping[str, Result], images: Mapping[str, Sequence[Result]]) -> Figure:
    """Draw three rows per run and ten images: clean, attacked, and the amplified difference."""
    columns = min(ACROSS, max(1, *map(len, images.values())))
    panels: list[Panel | None] = []
    for name, shown in images.items():
        rows = _rows(name, shown, results[name].get("classes", ()))
        for start in range(0, max(1, len(shown)), ACROSS):
            for part in (row[start : start + ACROSS] for row in rows):
                panels += [*part, *[None] * (columns - len(part))]
    return Figure(panels, columns=columns, width=max(1.4, 5.0 / columns), height=1.65)


def _rows(name: str, images: Sequence[Result], classes: Sequence[str]) -> list[list[Panel]]:
    """Return the rows of panels; older versions stored no names of the classes, so numbers are shown."""

    def named(number: int) -> str:
        return classes[number][:LONGEST] if number < len(classes) else f"class {number}"

    # Differences are drawn around grey, all amplified by one factor.
    changes = [torch.tensor(image["attacked"]) - torch.tensor(image["clean"]) for image in images]
    factor = 127.5 / max([int(change.abs().max()) for change in changes] + [1])
    texts = [f"{name}\n{row}" for row in ("clean", "attacked", f"difference x {factor:.0f}")]
    rows: list[list[Panel]] = [[], [], []]
    for image, change in zip(images, changes, strict=True):
        label, clean = image["label"], image.get("clean_class")
        mistake = "" if clean is None or clean == label else f"\n→ {named(clean)}"
        titles = f"{named(label)}{mistake}", f"→ {named(image['attacked_class'])}", ""
        difference = (127.5 + factor * change).round().clamp(0, 255).int().tolist()
        pictures = image["clean"], image["attacked"], difference
        for row, pixels, title, text in zip(rows, pictures, titles, texts, strict=True):
            row.append(Panel([Picture(pixels)], title, name="" if len(row) % ACROSS else text))
    return rows
