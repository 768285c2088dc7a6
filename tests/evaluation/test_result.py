"""Numbers that follow from predictions: intervals, verdict, worst case, classes, doubts."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sora.attacks import parse
from sora.errors import UserError
from sora.evaluation import Evaluation, doubts, verdict, wilson
from sora.threat import Linf

LABELS = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 2, 2])


def result(zero_gradients: float = 0.0, repeat: int = 1, **wrong: int) -> Evaluation:
    """An evaluation in which each attack changes so many of the ten predictions, from the first on."""
    labels = LABELS.repeat(repeat)
    predictions, settings = {}, {}
    for name, count in wrong.items():
        found = LABELS.clone()
        found[:count] = (found[:count] + 1) % 3
        predictions[name] = found.repeat(repeat)
        settings[name] = parse("clean").settings(Linf(0.1))
    return Evaluation(Linf(0.1), labels, 4, predictions, settings, zero_gradients)


def test_wilson_interval_of_a_known_case() -> None:
    low, high = wilson(8, 10)
    assert (low, high) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)


@given(n=st.integers(1, 10_000), data=st.data())
def test_wilson_interval_holds_the_share_and_stays_in_range(n: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, n))
    low, high = wilson(successes, n)
    assert 0 <= low <= successes / n <= high <= 1
    more = wilson(2 * successes, 2 * n)
    assert more[1] - more[0] < high - low


@pytest.mark.parametrize(
    ("fgsm", "pgd10", "word"),
    [
        (0.6, 0.3, "healthy"),
        (0.6, 0.29, "suspect"),
        (0.6, 0.15, "suspect"),
        (0.6, 0.149, "overfitted"),
        (0.9, 0.0, "overfitted"),
        (0.0, 0.0, "suspect"),
        (0.0, 0.2, "suspect"),
        (math.nan, 0.2, "suspect"),
    ],
)
def test_verdict(fgsm: float, pgd10: float, word: str) -> None:
    assert verdict({"fgsm": fgsm, "pgd10": pgd10, "clean": 1.0}) == word


def test_a_verdict_needs_both_attacks() -> None:
    with pytest.raises(UserError, match="fgsm and pgd10"):
        verdict({"clean": 1.0})


def test_numbers_follow_from_predictions() -> None:
    found = result(clean=1, pgd10=5)
    assert found.accuracy == {"clean": 0.9, "pgd10": 0.5}
    assert found.per_class("pgd10")[:3] == [0.0, 0.75, 1.0]
    assert math.isnan(found.per_class("pgd10")[3])
    assert found.confusion("pgd10").tolist() == [[0, 4, 0, 0], [0, 3, 1, 0], [0, 0, 2, 0], [0, 0, 0, 0]]
    assert found.confusion("clean").sum() == found.n
    assert found.attacks["pgd10"]["n"] == 10
    assert (found.attacks["pgd10"]["low"], found.attacks["pgd10"]["high"]) == wilson(5, 10)


def test_worst_case_is_over_attacks_example_by_example() -> None:
    found = result(a=3)
    other = LABELS.clone()
    other[-2:] = 0
    merged = found.merged(
        Evaluation(Linf(0.1), LABELS, 4, {"b": other}, {"b": parse("clean").settings(Linf(0.1))})
    )
    assert merged.accuracy == {"a": 0.7, "b": 0.8}
    assert merged.worst_case["accuracy"] == 0.5
    assert merged.worst_case["over"] == ["a", "b"]
    with pytest.raises(ValueError, match="cannot be merged"):
        found.merged(Evaluation(Linf(0.2), LABELS, 4, {"b": other}, {}))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"clean": 1, "fgsm": 3, "pgd10": 4, "aa": 4, "repeat": 100}, None),
        ({"clean": 3, "fgsm": 1}, "exceeds clean accuracy"),
        ({"clean": 1, "pgd10": 3, "aa": 8, "repeat": 10}, "far above AutoAttack"),
        ({"clean": 1, "pgd10": 3, "aa": 8}, None),  # ten examples cannot tell
        ({"clean": 1, "zero_gradients": 0.6}, "60% of the examples looked at is exactly zero"),
    ],
)
def test_doubts(given: dict[str, Any], words: str | None) -> None:
    found = doubts(result(**given))
    assert len(found) == (0 if words is None else 1)
    assert words is None or words in found[0]


def test_a_collapsed_model_is_named() -> None:
    found = Evaluation(Linf(0.1), LABELS, 3, {"clean": torch.full_like(LABELS, 2)}, {})
    assert "predicts class 2 for everything" in doubts(found)[0]
