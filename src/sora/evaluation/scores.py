"""Predictions under each attack, and what follows from them: accuracy, interval, verdict, warnings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sora._html import html_table
from sora.attacks import Attack
from sora.attacks.autoattack import is_autoattack
from sora.errors import UserError
from sora.evaluation.fingerprints import identity_of
from sora.threat import Threat

if TYPE_CHECKING:
    from sora.evaluation.trust import Finding

Z = 1.959963984540054  # two-sided 95 % of a normal distribution
VERDICTS = ("overfitted", "suspect", "not robust", "robust")
"""From the worst to the best: where runs differ, the first of these is reported."""

OBSERVED = ("zero_gradients", "nonnegative", "randomised", "dynamic")  # what the first batch shows

FAR = 0.75  # AutoAttack accuracy below this share of PGD accuracy; usually the gap is a tenth
MANY_ZERO = 0.1  # share of examples without an input gradient
SQUARE_GAIN = 0.002  # share of examples that only Square breaks: AutoAttack's own limit
UNLIKELY = 0.025  # probability below which chance does not explain a number, as in a 95 % interval
RARE = 0.001  # the same for what robust models would otherwise show now and then
_GRADIENT_ATTACKS = ("pgd", "apgd", "fab")  # not FGSM: thousands of queries are stronger than one step


def percent(share: float) -> str:
    """Return a share as a cell of a table."""
    return "-" if math.isnan(share) else f"{100 * share:.1f} %"


def wilson(successes: int, n: int) -> tuple[float, float]:
    """Return the 95 % interval of a proportion (Wilson's score interval, valid also near 0 and 1)."""
    share = successes / n
    centre = (share + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * math.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2))
    # Rounding must not push an end past the proportion itself.
    return max(0.0, min(centre - half, share)), min(1.0, max(centre + half, share))


def verdict(accuracy: Mapping[str, float], n: int, chance: float = 0.0) -> str:
    """Judge a model by its accuracies; a difference counts if so many images show that it is not chance.

    A model that is no better than chance, neither without an attack nor under FGSM, is `not robust`. (An
    overfitted one can be better under FGSM alone.) Else, the first that applies:

    - `overfitted`: it keeps at least half of its clean accuracy under FGSM, and under PGD-10 less than a
      quarter of what it keeps under FGSM: catastrophic overfitting.
    - `suspect`: PGD-10 accuracy is less than half of FGSM accuracy, which is more than stronger attacks
      usually take away; or it is overfitted by the numbers, on too few images to be sure.
    - `robust`: better than chance under PGD-10.
    - `not robust`: otherwise, as after ordinary training.

    Accuracies under FGSM and PGD-10 are needed; `chance` is that of the best constant prediction.
    """
    missing = [name for name in ("fgsm", "pgd10") if name not in accuracy]
    if missing:
        raise UserError(f"a verdict needs the accuracy under {' and '.join(missing)} as well")
    single, multi = accuracy["fgsm"], accuracy["pgd10"]
    clean = accuracy.get("clean", single)
    withstands_fgsm = _above(single, n, chance) and single >= clean / 2
    learned = _above(clean, n, chance)
    if not learned and not withstands_fgsm:
        return "not robust"
    if withstands_fgsm and multi < single / 4:
        return "overfitted" if wilson(round(multi * n), n)[1] < single / 4 else "suspect"
    if multi < single / 2 and (withstands_fgsm or _above(multi, n, chance)):
        return "suspect"
    return "robust" if learned and _above(multi, n, chance) else "not robust"


def _above(accuracy: float, n: int, chance: float) -> bool:
    """Return whether an accuracy is certainly higher than chance."""
    return math.isfinite(accuracy) and wilson(round(accuracy * n), n)[0] > chance


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Predictions of one model on the same examples under several attacks of one threat."""

    threat: Threat
    labels: Tensor
    num_classes: int
    predictions: dict[str, Tensor]
    """The predicted class of each example under each attack."""
    settings: dict[str, dict[str, Any]]
    """Norm, eps, steps, step size and restarts of each attack."""
    zero_gradients: float = 0.0
    """Share of the first batch's examples whose input gradient is exactly zero."""
    nonnegative: bool = False
    """Whether no output for the first batch is below zero, so that outputs may be probabilities."""
    randomised: bool = False
    """Whether two passes over the first batch differ."""
    dynamic: bool = False
    """Whether a forward pass computes gradients or changes the model itself."""
    void: dict[str, str] = field(default_factory=dict)
    """Attacks without a valid result, and why."""
    versions: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The code that each attack was run with."""
    inputs: dict[str, Tensor] = field(default_factory=dict)
    """The attacked inputs, if they were kept."""
    fingerprint: dict[str, Any] = field(default_factory=dict)
    """Hashes of weights, model and data, and all else the predictions depend on; empty if unknown."""
    trust: list[Finding] = field(default_factory=list)
    """The outcome of each masking test; empty if they were not run."""
    doubts: Sequence[str] = ()
    """What else is known that speaks against the numbers; each is one of the warnings."""
    judged: bool = True
    """Whether the task says which outputs are correct; otherwise there are losses, but no accuracies."""
    chance: float | None = None
    """For answers that are no classes: the accuracy of the best constant one, 0 if unknown. The labels are
    then all 1, and a prediction is 1 if it is correct."""

    def __repr__(self) -> str:
        text = f"{self.threat.norm} {self.threat.given}, n={self.n}: {self.line()}"
        text += f"; {self.verdict}" if self.verdict else ""
        text += f"; warning: {'; '.join(self.warnings)}" if self.warnings else ""
        text += f"; void: {', '.join(self.void)}" if self.void else ""
        return f"{type(self).__name__}({text})"

    def _repr_html_(self) -> str:
        head = ("attack", "accuracy" if self.judged else "mean loss", "95 % interval", "n")
        notes = [*filter(None, [self.remark]), *(f"warning: {text}" for text in self.warnings)]
        return html_table(self._title(), head, self.rows(), notes)

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Return the cells of a table: attack, accuracy, its 95 % interval and n; the worst case comes last.

        Without accuracies, the cells of the mean losses.
        """
        n = str(self.n)
        if not self.judged:
            return [(name, f"{loss:.4g}", "-", n) for name, loss in self.losses.items()]
        counts = {name: {**self.attacks[name], "accuracy": share} for name, share in self.accuracy.items()}
        return [
            (name, percent(own["accuracy"]), f"{100 * own['low']:.1f} - {100 * own['high']:.1f}", n)
            for name, own in {**counts, "worst case": self.worst_case}.items()
        ]

    def _title(self) -> str:
        return f"{self.threat.norm} eps {self.threat.given}: {self.verdict or 'no verdict'}"

    @property
    def n(self) -> int:
        """The number of examples."""
        return len(self.labels)

    @cached_property
    def robust(self) -> dict[str, Tensor]:
        """Which examples are still correctly classified under each attack."""
        judged = self.predictions if self.judged else {}
        return {name: predicted == self.labels for name, predicted in judged.items()}

    @cached_property
    def accuracy(self) -> dict[str, float]:
        """The share of correctly classified examples under each attack."""
        return {name: int(flags.sum()) / self.n for name, flags in self.robust.items()}

    @property
    def losses(self) -> dict[str, float]:
        """The mean loss under each attack, for tasks whose answers are no classes."""
        return {name: own["loss"] for name, own in self.settings.items() if "loss" in own}

    def line(self) -> str:
        """Return the accuracies in one line; without any, the losses."""
        if not self.judged:
            return ", ".join(f"{name} loss {loss:.4g}" for name, loss in self.losses.items())
        return ", ".join(f"{name} {100 * share:.1f} %" for name, share in self.accuracy.items())

    @property
    def warnings(self) -> list[str]:
        """Reasons to doubt the numbers, as `sora evaluate` prints them."""
        return [*_about_numbers(self), *_about_model(self), *self.void.values()]

    @property
    def verdict(self) -> str | None:
        """See `verdict`; None without FGSM, PGD-10 or a second class.

        A failed masking test makes it `suspect`; so do many zero gradients, or a PGD-10 that is weaker than
        FGSM, if it would be `robust`.
        """
        chance = self.labels.bincount().max().item() / self.n if self.chance is None else self.chance
        if self.one_label or not {"fgsm", "pgd10"} <= self.accuracy.keys():
            by_numbers = None
        elif self.constant_class is not None:  # no attack changes its answer, which is not robustness
            by_numbers = "not robust"
        else:
            by_numbers = verdict(self.accuracy, self.n, chance)
        doubtful = self.zero_gradients >= MANY_ZERO or self.weaker_with_steps
        masked = bool(self.failed_tests) or (by_numbers == "robust" and doubtful)
        return "suspect" if masked and by_numbers != "overfitted" else by_numbers

    @property
    def weaker_with_steps(self) -> bool:
        """Whether PGD-10 spares more images that FGSM breaks than it breaks others, beyond chance."""
        if not {"fgsm", "pgd10"} <= self.robust.keys():
            return False
        one, ten = self.robust["fgsm"], self.robust["pgd10"]
        spared, broken = int((ten & ~one).sum()), int((one & ~ten).sum())
        return spared > broken and at_least(spared, spared + broken, 0.5) < RARE

    @property
    def failed_tests(self) -> list[Finding]:
        """The masking tests that the model has failed."""
        return [finding for finding in self.trust if finding.outcome == "failed"]

    @property
    def one_label(self) -> bool:
        """Whether all labels are equal: a model that always gives this answer would be perfect."""
        return self.chance is None and bool((self.labels == self.labels[0]).all())

    @property
    def constant_class(self) -> int | None:
        """The class that the model predicts for everything, if there is one and the labels have several."""
        predicted = self.predictions.get("clean")  # an attack can also push all images into one class
        if predicted is None or self.chance is not None or self.one_label:
            return None
        return None if bool((predicted != predicted[0]).any()) else int(predicted[0])

    @cached_property
    def attacks(self) -> dict[str, dict[str, Any]]:
        """Each attack's settings with n and the 95 % interval of its accuracy."""
        counts = {name: self._count(flags) for name, flags in self.robust.items()}
        return {name: own | counts.get(name, {"n": self.n}) for name, own in self.settings.items()}

    @cached_property
    def robust_to_all(self) -> Tensor:
        """Which examples stay correctly classified under every attack: only these may be called robust."""
        return torch.stack(list(self.robust.values())).all(0) if self.judged else self.labels < 0

    @cached_property
    def worst_case(self) -> dict[str, Any]:
        """The share of `robust_to_all`, with n, its 95 % interval, and the attacks it is over."""
        share = int(self.robust_to_all.sum()) / self.n
        return {"accuracy": share, "over": list(self.predictions), **self._count(self.robust_to_all)}

    @property
    def remark(self) -> str:
        """The attacks behind the worst case if AutoAttack and PGD-50-10 are not among them; else empty."""
        if not self.judged or any(is_autoattack(name) or name == "pgd50x10" for name in self.accuracy):
            return ""
        return f"worst case: of {', '.join(self.accuracy)}; an upper bound, AutoAttack was not run"

    def per_class(self, name: str) -> list[float]:
        """Return the accuracy of each class under an attack; NaN for a class without examples."""
        hits = self.labels[self.robust[name]].bincount(minlength=self.num_classes)
        sizes = self.labels.bincount(minlength=self.num_classes)
        return (hits.double() / sizes).tolist()

    def confusion(self, name: str) -> Tensor:
        """Count the pairs of (true class, predicted class) under an attack."""
        pairs = self.labels * self.num_classes + self.predictions[name]
        return pairs.bincount(minlength=self.num_classes**2).view(self.num_classes, self.num_classes)

    def has(self, attack: Attack, seeds: int = 1) -> bool:
        """Return whether this attack was run with so many seeds, with or without a result, and not edited."""
        attack = attack.for_classes(self.num_classes)
        known = self.settings.get(attack.name, {}).get("seeds", {"n": 1})["n"]
        if attack.start == "random" and known < seeds and attack.name not in self.void:
            return False
        same = self.versions.get(attack.name, {}).get("attack") == identity_of(attack, self.threat)
        return same and (attack.name in self.predictions or attack.name in self.void)

    def merged(self, other: Evaluation) -> Evaluation:
        """Return both evaluations as one, of the same model, examples and threat; `other` is newer."""
        if other.threat != self.threat or not torch.equal(other.labels, self.labels):
            raise ValueError("evaluations of different threats or examples cannot be merged")
        # Without the results of attacks that are void now, e.g. after they were edited.
        old = self._part([name for name in self.predictions if name not in other.void], _RESULTS)
        void = {**self.void, **other.void}
        return replace(
            other,
            predictions=old.predictions | other.predictions,
            settings=old.settings | other.settings,
            void={name: why for name, why in void.items() if name not in other.predictions},
            versions={**self.versions, **other.versions},
            inputs=old.inputs | other.inputs,
            trust=other.trust or self.trust,
        )

    def only(self, attacks: Sequence[Attack]) -> Evaluation:
        """Return the part of the result that belongs to these attacks, in their order."""
        names = [attack.for_classes(self.num_classes).name for attack in attacks]
        return self._part(names, (*_RESULTS, "void", "versions"))

    def _part(self, names: Iterable[str], tables: Iterable[str]) -> Evaluation:
        chosen: dict[str, Any] = {}
        for table in tables:
            whole = getattr(self, table)
            chosen[table] = {name: whole[name] for name in names if name in whole}
        return replace(self, **chosen)

    def record(self) -> dict[str, Any]:
        """Return the numbers in the form that the files of a run folder have."""
        return {
            "threat": {"norm": self.threat.norm, "eps": self.threat.eps},
            "accuracy": dict(self.accuracy),
            "attacks": {name: dict(own) for name, own in self.attacks.items() if self.judged},
            **({"losses": self.losses} if self.losses else {}),
            **({"void": dict(self.void)} if self.void else {}),
        }

    def _count(self, flags: Tensor) -> dict[str, Any]:
        low, high = wilson(int(flags.sum()), self.n)
        return {"n": self.n, "low": low, "high": high}


_RESULTS = ("predictions", "settings", "inputs")  # fields by attack


def _about_numbers(evaluation: Evaluation) -> Iterator[str]:
    accuracy, attacks, n = evaluation.accuracy, evaluation.attacks, evaluation.n
    if evaluation.constant_class is not None:
        yield (
            f"the model predicts class {evaluation.constant_class} for everything: it has collapsed, and its"
            " robustness means nothing"
        )
    if evaluation.one_label and {"fgsm", "pgd10"} <= accuracy.keys():
        yield "all images are of one class: there is no verdict; evaluate images of several classes"
    clean, fgsm = accuracy.get("clean", 1.0), accuracy.get("fgsm", 0.0)
    if fgsm > clean:
        yield (
            f"FGSM accuracy ({fgsm:.1%}) exceeds clean accuracy ({clean:.1%}): the attack helps the model, "
            "a sign of catastrophic overfitting; trust PGD and AutoAttack only"
        )
    if evaluation.weaker_with_steps:
        yield (
            f"PGD-10 accuracy ({accuracy['pgd10']:.1%}) exceeds FGSM accuracy ({fgsm:.1%}): ten steps are a"
            " weaker attack than one, so gradients are masked; quote AutoAttack"
        )
    pgd = min((name for name in accuracy if name.startswith("pgd")), key=lambda a: accuracy[a], default=None)
    autoattack = min(filter(is_autoattack, accuracy), key=lambda name: accuracy[name], default=None)
    if pgd is not None and autoattack is not None:
        significant = attacks[autoattack]["high"] < attacks[pgd]["low"]
        if significant and accuracy[autoattack] < FAR * accuracy[pgd]:
            yield (
                f"accuracy under {pgd} ({accuracy[pgd]:.1%}) is far above AutoAttack's "
                f"({accuracy[autoattack]:.1%}): gradients are masked; quote AutoAttack"
            )
    broken = _broken_by_square(evaluation)
    if broken > SQUARE_GAIN * n and at_least(broken, n, SQUARE_GAIN) < UNLIKELY:
        yield (
            f"Square, which uses no gradients, breaks {broken} of {n} images that the gradient attacks"
            " leave: gradients may be masked; run the masking tests (--trust), and do not quote PGD"
        )


def _about_model(evaluation: Evaluation) -> Iterator[str]:
    yield from evaluation.doubts
    zero = evaluation.zero_gradients
    if zero >= MANY_ZERO:
        yield (
            f"the input gradient of {zero:.0%} of the examples inspected is exactly zero: gradient attacks"
            " (fgsm, pgd, apgd) fail on them; trust square, which uses no gradients"
        )
    if evaluation.nonnegative:
        yield (
            "no output of the model is negative: they look like probabilities (softmax, sigmoid,"
            " exponential), which hide gradients; evaluate the logits before them"
        )
    if evaluation.randomised and all(own.get("eot", 1) == 1 for own in evaluation.settings.values()):
        yield (
            "two passes over the same images differ: the model is random, and attacks follow the gradient of"
            " one draw; use attacks that average it (aa-rand, pgd20@eot8)"
        )
    if evaluation.dynamic:
        yield (
            "the model computes gradients or changes itself in the forward pass: such dynamic defences need"
            " an attack of their own, and AutoAttack may overestimate them"
        )


def _broken_by_square(evaluation: Evaluation) -> int:
    """Count the images that gradient attacks leave and Square, last in AutoAttack's order, breaks."""
    parts = [own["broken"] for own in evaluation.settings.values() if own.get("broken")]
    counts = [broken["square"] for broken in parts if [*broken][-1] == "square"]
    gradient = [flags for name, flags in evaluation.robust.items() if name.startswith(_GRADIENT_ATTACKS)]
    if "square" in evaluation.robust and gradient:
        withstands = torch.stack(gradient).all(0)
        counts.append(int((withstands & ~evaluation.robust["square"]).sum()))
    return max(counts, default=0)


def at_least(successes: int, n: int, share: float) -> float:
    """Return the probability of so many successes or more in n trials that succeed with this probability."""
    from scipy import stats  # slow to import

    return float(stats.binom.sf(successes - 1, n, share))
