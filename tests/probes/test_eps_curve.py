"""Accuracy over the test radius, of models whose curves are known."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sora.evaluation import evaluate
from sora.probes import Result, create
from sora.probes.eps_curve import largest_rise
from sora.threat import Linf

from .toys import THREAT, Bumpy, images, measure, smooth


def fgsm_at(curve: Result) -> dict[float, float]:
    return dict(zip(curve["multiples"], curve["fgsm"], strict=True))


def test_it_agrees_with_evaluate_and_radii_beyond_the_pixel_range_are_measured() -> None:
    model, data = smooth(), images()
    curve = measure("eps-curve", model, data)
    accuracy = evaluate(model, data, THREAT, ("clean", "fgsm")).accuracy
    assert fgsm_at(curve)[0.0] == accuracy["clean"]
    assert fgsm_at(curve)[1.0] == accuracy["fgsm"]
    assert (curve["multiples"][0], curve["multiples"][-1], len(curve["multiples"])) == (-2, 4, 49)
    assert [p is None for p in curve["pgd10"]] == [m < 0 for m in curve["multiples"]]
    curve = measure("eps-curve", smooth(), images(), Linf(0.5))
    assert len(curve["pgd10"]) == len(curve["multiples"])
    assert all(share is not None for share in curve["pgd10"][-32:])
    (panel,) = create("eps-curve").figure({"a": curve | {"threat": {"eps": 8 / 255}}}).panels
    assert panel is not None
    assert panel.x.label == "step in multiples of eps = 8/255"


def test_a_linear_model_never_rises() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    curve = measure("eps-curve", model, images(40), Linf(0.1, box=None))
    assert curve["index_all"] == 0
    assert curve["fgsm"][0] > curve["fgsm"][-1]


def test_the_index_is_the_rise_after_a_dip() -> None:
    x = torch.full((10, 1, 4, 4), 0.5)  # class 1; a step of 0.1 lands in the band, one of 0.18 beyond it
    curve = measure("eps-curve", Bumpy(), (x, torch.ones(10, dtype=torch.long)))
    at = fgsm_at(curve)
    assert (at[0.0], at[1.0], at[1.75]) == (1.0, 0.0, 1.0)
    assert curve["index"] == 1.0
    assert curve["rise"]["from"] < curve["rise"]["to"]


def test_a_step_against_the_gradient_helps() -> None:
    at = fgsm_at(measure("eps-curve", smooth(), images(30)))
    assert at[-1.0] > at[0.0] > at[1.0]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_largest_rise_is_the_largest_over_all_pairs(values: list[float]) -> None:
    pairs = [values[j] - values[i] for i in range(len(values)) for j in range(i, len(values))]
    rise = largest_rise(values)
    assert rise.size == max(pairs)
    assert values[rise.end] - values[rise.start] == rise.size
    assert rise.start <= rise.end
