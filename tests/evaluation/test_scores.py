"""What follows from predictions: intervals, verdict, worst case, classes, warnings."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sora.attacks import create
from sora.errors import UserError
from sora.evaluation import Evaluation, verdict, wilson
from sora.evaluation.scores import VERDICTS, at_least
from sora.threat import Linf

torch.set_num_threads(1)

LABELS = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 2, 2])
PLAIN = create("clean").settings(Linf(0.1))


def result(repeat: int = 1, zero_gradients: float = 0.0, **wrong: int) -> Evaluation:
    """An evaluation in which each attack changes the first few of the ten predictions, as many as given."""
    predictions = {}
    for name, count in wrong.items():
        predicted = LABELS.clone()
        predicted[:count] = (predicted[:count] + 1) % 3
        predictions[name] = predicted.repeat(repeat)
    settings = {name: dict(PLAIN) for name in wrong}
    return Evaluation(Linf(0.1), LABELS.repeat(repeat), 4, predictions, settings, zero_gradients)


def test_wilson_interval_of_a_known_case() -> None:
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)


@given(n=st.integers(1, 10_000), data=st.data())
def test_wilson_interval_holds_the_share_and_stays_in_range(n: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, n))
    low, high = wilson(successes, n)
    assert 0 <= low <= successes / n <= high <= 1
    more = wilson(2 * successes, 2 * n)
    assert more[1] - more[0] < high - low


@pytest.mark.parametrize(("k", "n", "share"), [(0, 7, 0.1), (1, 7, 0.1), (3, 40, 0.02), (7, 7, 0.5)])
def test_the_chance_of_at_least_so_many(k: int, n: int, share: float) -> None:
    exact = sum(math.comb(n, i) * share**i * (1 - share) ** (n - i) for i in range(k, n + 1))
    assert at_least(k, n, share) == pytest.approx(exact)
    assert 0 <= at_least(50_000, 50_000, 0.002) < 1e-6


@pytest.mark.parametrize(
    ("clean", "fgsm", "pgd10", "n", "expected"),
    [
        (0.8, 0.6, 0.3, 1000, "robust"),
        (0.8, 0.6, 0.29, 1000, "suspect"),
        (0.8, 0.6, 0.16, 1000, "suspect"),
        (0.8, 0.6, 0.1, 1000, "overfitted"),
        (0.958, 0.975, 0.003, 360, "overfitted"),  # FGSM training on digits
        (0.9, 0.9, 0.0, 10, "suspect"),  # the same on too few images
        (0.93, 0.05, 0.0, 10_000, "not robust"),  # ordinary training
        (0.93, 0.2, 0.0, 10_000, "not robust"),  # ordinary training that FGSM misses
        (0.93, 0.3, 0.12, 10_000, "suspect"),
        (0.292, 0.083, 0.078, 360, "not robust"),  # hardly trained
        (0.11, 0.11, 0.11, 360, "not robust"),  # at chance
        (0.158, 0.546, 0.004, 500, "overfitted"),  # better under its own attack than without one
        (0.11, 0.546, 0.004, 500, "overfitted"),  # and at chance without one
        (0.11, 0.546, 0.4, 500, "not robust"),
        (0.4, 0.14, 0.1, 10_000, "not robust"),
        (0.0, 0.0, 0.0, 100, "not robust"),
    ],
)
def test_verdict(clean: float, fgsm: float, pgd10: float, n: int, expected: str) -> None:
    assert verdict({"fgsm": fgsm, "pgd10": pgd10, "clean": clean}, n, chance=0.1) == expected


@given(st.integers(1, 500), st.data())
def test_more_accuracy_under_pgd_is_never_a_worse_verdict(n: int, data: st.DataObject) -> None:
    clean, fgsm = (data.draw(st.integers(0, n)) / n for _ in range(2))
    verdicts = [verdict({"clean": clean, "fgsm": fgsm, "pgd10": k / n}, n, 0.1) for k in range(n + 1)]
    severity = [VERDICTS.index(each) for each in verdicts if each != "not robust"]
    assert severity == sorted(severity)


def test_a_verdict_needs_both_attacks_and_an_evaluation_prints_as_one_line() -> None:
    with pytest.raises(UserError, match="fgsm and pgd10"):
        verdict({"clean": 1.0}, 10)
    assert result(clean=1, fgsm=3).verdict is None
    assert result(repeat=50, fgsm=1, pgd10=9).verdict == "overfitted"
    assert repr(result(repeat=10, clean=1, fgsm=2, pgd10=3)) == (
        "Evaluation(linf 0.1, n=100: clean 90.0 %, fgsm 80.0 %, pgd10 70.0 %; robust)"
    )
    assert repr(result(clean=1)) == "Evaluation(linf 0.1, n=10: clean 90.0 %)"


def test_a_pgd_that_is_weaker_than_fgsm_makes_the_verdict_suspect() -> None:
    assert result(clean=1, fgsm=3, pgd10=4, repeat=10).verdict == "robust"
    assert result(clean=1, fgsm=4, pgd10=3, repeat=10).verdict == "suspect"
    assert result(clean=1, fgsm=4, pgd10=3).verdict != "suspect"  # one image may be chance


def test_numbers_follow_from_predictions() -> None:
    evaluation = result(clean=1, pgd10=5)
    assert evaluation.accuracy == {"clean": 0.9, "pgd10": 0.5}
    assert evaluation.per_class("pgd10")[:3] == [0.0, 0.75, 1.0]
    assert math.isnan(evaluation.per_class("pgd10")[3])
    assert evaluation.confusion("pgd10").tolist() == [[0, 4, 0, 0], [0, 3, 1, 0], [0, 0, 2, 0], [0, 0, 0, 0]]
    assert evaluation.confusion("clean").sum() == evaluation.n
    assert evaluation.attacks["pgd10"]["n"] == 10
    assert (evaluation.attacks["pgd10"]["low"], evaluation.attacks["pgd10"]["high"]) == wilson(5, 10)


def test_worst_case_is_over_attacks_example_by_example() -> None:
    evaluation = result(a=3)
    other = LABELS.clone()
    other[-2:] = 0
    merged = evaluation.merged(Evaluation(Linf(0.1), LABELS, 4, {"b": other}, {"b": PLAIN}))
    assert merged.accuracy == {"a": 0.7, "b": 0.8}
    assert merged.worst_case["accuracy"] == 0.5
    assert merged.worst_case["over"] == ["a", "b"]
    assert merged.robust_to_all.tolist() == [False] * 3 + [True] * 5 + [False] * 2
    with pytest.raises(ValueError, match="cannot be merged"):
        evaluation.merged(Evaluation(Linf(0.2), LABELS, 4, {"b": other}, {}))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"clean": 1, "fgsm": 3, "pgd10": 4, "aa": 4, "repeat": 100}, None),
        ({"clean": 3, "fgsm": 1}, "exceeds clean accuracy"),
        ({"clean": 1, "fgsm": 4, "pgd10": 3, "repeat": 10}, "ten steps are a weaker attack than one"),
        ({"clean": 1, "fgsm": 4, "pgd10": 3}, None),  # one image
        *[
            ({"clean": 1, "pgd10": 3, name: 8, "repeat": 10}, "far above AutoAttack")
            for name in ("aa", "aa-plus", "aa-rand", "aa-reduced", "aa-plus-reduced", "aa-rand-reduced")
        ],
        ({"clean": 1, "pgd10": 3, "aa": 8}, None),  # too few examples to be significant
        ({"clean": 1, "zero_gradients": 0.09}, None),
        ({"clean": 1, "zero_gradients": 0.1}, "10% of the examples inspected is exactly zero"),
        ({"clean": 1, "zero_gradients": 0.6}, "60% of the examples inspected is exactly zero"),
        ({"pgd10": 0, "square": 10, "repeat": 10}, "breaks 100 of 100 images"),  # image by image
        ({"pgd10": 10, "square": 10, "repeat": 10}, None),
    ],
)
def test_warnings(given: dict[str, Any], message: str | None) -> None:
    warnings = result(**given).warnings
    assert len(warnings) == (0 if message is None else 1)
    assert message is None or message in warnings[0]


@pytest.mark.parametrize(
    ("broken", "n", "named"), [(5, 100, 1), (1, 100, 0), (0, 100, 0), (1, 20, 0), (2, 20, 1)]
)
def test_what_only_square_breaks_is_named_beyond_chance(broken: int, n: int, named: int) -> None:
    labels = torch.arange(n) % 4
    after = labels.clone()
    after[:broken] = (after[:broken] + 1) % 4
    settings = {"aa": PLAIN | {"broken": {"apgd-ce": 0, "square": broken}}}
    warnings = Evaluation(Linf(0.1), labels, 4, {"aa": after}, settings).warnings
    assert [text.split(",")[0] for text in warnings] == ["Square"] * named


def test_a_collapsed_model_is_named() -> None:
    twos = torch.full_like(LABELS, 2)
    (warning,) = Evaluation(Linf(0.1), LABELS, 3, {"clean": twos}, {}).warnings
    assert "predicts class 2 for everything" in warning
    pushed = Evaluation(Linf(0.1), LABELS, 3, {"pgd10": twos}, {})  # an attack may do that to any model
    assert pushed.constant_class is None
    assert pushed.warnings == []


@pytest.mark.parametrize("wrong", [0, 40])
def test_images_of_one_class_have_no_verdict(wrong: int) -> None:
    labels = torch.full((100,), 2)
    predicted = labels.clone()
    predicted[:wrong] = 0
    evaluation = Evaluation(Linf(0.1), labels, 3, {"clean": labels, "fgsm": labels, "pgd10": predicted}, {})
    assert evaluation.verdict is None
    (warning,) = evaluation.warnings
    assert warning.startswith("all images are of one class: there is no verdict")


@pytest.mark.parametrize(("share", "verdict"), [(0.0, "robust"), (0.5, "suspect")])
def test_a_model_without_gradients_is_not_called_robust(share: float, verdict: str) -> None:
    assert result(10, share, clean=0, fgsm=0, pgd10=0).verdict == verdict
