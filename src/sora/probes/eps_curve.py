"""Accuracy as a function of the test radius, which shows epsilon overfitting (section 3 of the paper)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sora._passes import frozen, input_gradient
from sora._seeds import generator_for, mix
from sora.attacks import pgd
from sora.evaluation import BATCH
from sora.evaluation.progress import progress_bar
from sora.figures import ATTACKS, Axis, Figure, Item, Line, Panel, Rule, Span, colour_of, looks
from sora.probes._base import Probe, ProbedModel, Result, register
from sora.threat import eps_text

LOW, HIGH, PER_EPS = -2, 4, 8  # from -2 eps to 4 eps in steps of eps/8
MULTIPLES = [k / PER_EPS for k in range(LOW * PER_EPS, HIGH * PER_EPS + 1)]
ZERO = MULTIPLES.index(0.0)
# A larger rise of FGSM accuracy is shaded in the picture; one of a few images may be chance.
MARKED, MARKED_IMAGES = 0.02, 5


class Rise(NamedTuple):
    """The largest increase within a sequence, and the positions where it starts and ends."""

    size: float
    start: int
    end: int


def largest_rise(values: Sequence[float]) -> Rise:
    """Return the largest `values[j] - values[i]` with `i <= j`: 0 for a sequence that never rises."""
    rises = [value - low for value, low in zip(values, accumulate(values, min), strict=True)]
    size = max(rises)
    end = rises.index(size)
    return Rise(size, list(values).index(min(values[: end + 1])), end)


@register(
    "eps-curve",
    "FGSM accuracy from -2 eps to 4 eps, PGD-10 accuracy from 0 to 4 eps",
    images=500,
    figures=(2, 11),
)
@dataclass(frozen=True)
class EpsCurve(Probe[ProbedModel]):
    """FGSM accuracy from -2 eps to 4 eps (a negative step goes against the gradient), PGD-10's from 0 on.

    The index of epsilon overfitting is the largest rise of FGSM accuracy as the step grows from 0: a longer
    step gives the attacker more freedom, so the curve of a robust model does not rise.
    """

    batch_size: int = BATCH  # images attacked together

    def measure(self, subject: ProbedModel) -> Result:
        """Measure both curves, and the largest rise of the FGSM curve."""
        model, examples, threat = subject.bare_model, subject.examples(), subject.threat
        correct: dict[str, list[Tensor | int]] = {name: [0] * len(MULTIPLES) for name in ("fgsm", "pgd10")}
        batches = torch.split(torch.arange(len(examples.labels)), self.batch_size)
        attacks = len(batches) * len(MULTIPLES[ZERO:])  # counts PGD only, which takes nearly all the time

        def count(x: Tensor, y: Tensor) -> Any:
            with torch.no_grad():
                return (model(x).argmax(1) == y).sum()

        with frozen(model), progress_bar("eps-curve", attacks, subject.progress) as advance:
            for number, positions in enumerate(batches):
                x, y = examples.take(positions, subject.device)
                gradient, _ = input_gradient(model, x, y)  # the same for all radii
                for index, multiple in enumerate(MULTIPLES):
                    fgsm = threat.step(x, gradient, multiple * threat.eps)
                    correct["fgsm"][index] += count(fgsm, y)
                    if multiple >= 0:
                        generator = generator_for(x.device, mix(subject.seed, number))
                        strong = pgd(model, x, y, threat.scaled(multiple), generator=generator)
                        correct["pgd10"][index] += count(strong, y)
                        advance()
        n = len(examples.labels)
        fgsm_curve, pgd_curve = ([int(count) / n for count in counts] for counts in correct.values())
        rise = largest_rise(fgsm_curve[ZERO:])
        return {
            **subject.facts(n),
            "multiples": MULTIPLES,
            "fgsm": fgsm_curve,
            "pgd10": [None] * ZERO + pgd_curve[ZERO:],
            "index": rise.size,
            "rise": {"from": MULTIPLES[ZERO + rise.start], "to": MULTIPLES[ZERO + rise.end]},
            "index_all": largest_rise(fgsm_curve).size,
        }

    def figure(self, results: Mapping[str, Result]) -> Figure:
        """Draw a panel per run; the largest rise is shaded unless it is so small that it may be chance."""
        return Figure([_panel(name, result) for name, result in results.items()])

    def sentence(self, result: Result) -> str:
        """State the largest rise, and the accuracies at 0 and at eps."""
        fgsm, rise = result["fgsm"], result["rise"]
        zero, one = (result["multiples"].index(multiple) for multiple in (0.0, 1.0))
        where = f" (from {rise['from']:g} eps to {rise['to']:g} eps)" if result["index"] else ""
        return (
            f"FGSM accuracy rises by {100 * result['index']:.1f} points at most{where}; clean "
            f"{100 * fgsm[zero]:.1f} %, FGSM {100 * fgsm[one]:.1f} %, PGD-10 "
            f"{100 * result['pgd10'][one]:.1f} % at eps (n = {result['n']})"
        )


@register(
    "eps-overlay",
    "FGSM accuracy of several runs over one absolute axis",
    images=500,
    of="eps-curve",
    figures=(10,),
)
class EpsOverlay(EpsCurve):
    """The FGSM curves of runs that were trained with different radii."""

    def figure(self, results: Mapping[str, Result]) -> Figure:
        """Draw all runs in one panel."""
        items: list[Item] = []
        drawn = looks({name: result.get("method", "") for name, result in results.items()})
        for name, result in results.items():
            eps = 255 * result["threat"]["eps"]
            x = [multiple * eps for multiple in result["multiples"]]
            items.append(Line(x, result["fgsm"], f"{name}, trained at {eps:.3g}/255", *drawn[name][:2]))
        axes = Axis("step of FGSM (1/255)"), Axis("accuracy", 0, 1.02, percent=True)
        index, name = max((result["index"], name) for name, result in results.items())
        title = f"FGSM accuracy rises with the step by at most {100 * index:.1f} points ({name})"
        return Figure([Panel(items, title, *axes)], width=7.5, height=4.5)


def _panel(name: str, curve: Result) -> Panel:
    gained, colour = round(curve["index"] * curve["n"]), colour_of(curve.get("method", ""))
    items: list[Item] = [
        Line(curve["multiples"], curve["fgsm"], "FGSM", colour, ATTACKS["fgsm"]),
        Line(curve["multiples"], curve["pgd10"], "PGD-10", colour, ATTACKS["pgd10"]),
        Rule(0, style="solid"),
        Rule(1, style="dashed"),
    ]
    marked = curve["index"] > MARKED and gained >= MARKED_IMAGES
    if marked:
        items.append(Span(curve["rise"]["from"], curve["rise"]["to"], "largest rise", colour))
    what = "accuracy rises with the step by" if marked else "no rise beyond"
    title = f"{name}: {what} {100 * curve['index']:.1f} points ({gained} images)"
    x = Axis(f"step in multiples of eps = {eps_text(curve['threat']['eps'])}")
    return Panel(items, title, x, Axis(f"accuracy (n = {curve['n']})", 0, 1.02, percent=True))
