"""How a rule is judged: which collapses it detects and how early, and which alarms are false."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import get_args

from corpus import Trace
from rules import Rule
from truth import Kind, Truth

from sora.training.alarms import RATIO_FLOOR

CHOICE_DIGITS = ("fgsm", "n-fgsm", "gradalign", "sora", "atas", "free", "pgd-2")
LOG_EVERY = 10  # a second look can be taken at a line of the log
BEFORE, AFTER = 60, 20  # an alarm belongs to a collapse if it stands in this window of steps around it

Make = Callable[[], Rule]
Run = tuple[Trace, Truth]


@dataclass(frozen=True)
class Outcome:
    """What a rule did in one run."""

    false: int
    """Alarms that belong neither to the collapse nor to another phase of overfitting."""
    detected: bool
    """Whether an alarm belongs to the collapse; without one, to a phase of overfitting."""
    lead: int | None
    """Steps from the beginning of the alarm to the collapse."""


@dataclass(frozen=True)
class Score:
    """What a rule did in many runs."""

    detected: int
    collapsed: int
    caught: int
    """Runs overfitted from the start with an alarm while they were overfitted."""
    overfitted: int
    falsely_alarmed: int
    """Healthy runs with a false alarm."""
    healthy: int
    false: int
    """False alarms in healthy and in collapsed runs."""
    never_alarmed: int
    never: int
    leads: tuple[int, ...]

    @property
    def cost(self) -> tuple[float, float]:
        """To be minimised: share of errors of both kinds, then minus the median lead."""
        missed = 1 - (self.detected + self.caught) / max(1, self.collapsed + self.overfitted)
        return missed + self.falsely_alarmed / max(1, self.healthy), -min(self.median_lead, BEFORE)

    @property
    def median_lead(self) -> float:
        """Over detected collapses."""
        return median(self.leads) if self.leads else math.nan


def in_choice_half(trace: Trace) -> bool:
    """Whether a run belongs to the half on which parameters are chosen."""
    return (trace.method in CHOICE_DIGITS) == (trace.dataset == "digits")


def alarm_steps(rule: Rule, rows: Iterable[tuple[float, ...]]) -> Iterator[tuple[int, int]]:
    """First and last step of each alarm, from rows of step, value, look and ratio."""
    begin: int | None = None
    step = 0.0
    for step, value, look, ratio in rows:
        alarmed = rule.update(value, look, ratio)
        if alarmed and begin is None:
            begin = int(step)
        elif not alarmed and begin is not None:
            yield begin, int(step) - 1
            begin = None
    if begin is not None:
        yield begin, int(step)


def judge(rule: Rule, trace: Trace, truth: Truth, values: list[float]) -> Outcome:
    """Run a rule over one run."""
    ratios = [ratio(*pair) for pair in zip(trace["fgsm"], trace["pgd"], strict=True)]
    rows = zip(trace["step"], values, looks(trace, "look", LOG_EVERY), ratios, strict=True)
    alarms = list(alarm_steps(rule, rows))
    others = [alarm for alarm in alarms if not any(alarm[0] <= step <= alarm[1] for step in truth.overfitted)]
    if truth.fall is None:
        return Outcome(len(others), len(alarms) > len(others), None)
    fall = truth.fall
    fitting = [alarm for alarm in alarms if alarm[0] <= fall + AFTER and alarm[1] >= fall - BEFORE]
    false = [alarm for alarm in others if alarm not in fitting]
    return Outcome(len(false), bool(fitting), fall - fitting[0][0] if fitting else None)


def ratio(fgsm: float, pgd: float) -> float:
    """PGD-10 over FGSM accuracy, as `sora.training.alarms` measures it for ten classes."""
    return pgd / fgsm if fgsm >= RATIO_FLOOR else math.inf


def looks(trace: Trace, column: str, every: int) -> list[float]:
    """The values of a column, at least so many steps apart, NaN at all other steps."""
    found, last = [], 0.0
    for step, value in zip(trace["step"], trace[column], strict=True):
        taken = not math.isnan(value) and step >= last + every
        found.append(value if taken else math.nan)
        last = step if taken else last
    return found


def score(make: Make, runs: list[Run], column: str = "", every: int = 1) -> Score:
    """Judge a rule over many runs, by PertAlign or by another column."""
    outcomes = []
    for trace, truth in runs:
        values = looks(trace, column, every) if column else trace["pert_align"]
        outcomes.append((truth.kind, judge(make(), trace, truth, values)))
    by_kind = {kind: [outcome for found, outcome in outcomes if found == kind] for kind in get_args(Kind)}
    fallen, healthy = by_kind["collapsed"], by_kind["healthy"]
    overfitted, never = by_kind["overfitted"], by_kind["never robust"]
    return Score(
        detected=sum(outcome.detected for outcome in fallen),
        collapsed=len(fallen),
        caught=sum(outcome.detected for outcome in overfitted),
        overfitted=len(overfitted),
        falsely_alarmed=sum(outcome.false > 0 for outcome in healthy),
        healthy=len(healthy),
        false=sum(outcome.false for outcome in healthy + fallen),
        never_alarmed=sum(outcome.false > 0 for outcome in never),
        never=len(never),
        leads=tuple(outcome.lead for outcome in fallen if outcome.lead is not None),
    )
