"""Probes against models whose answers are known."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from sora.errors import UserError
from sora.evaluation import evaluate
from sora.evaluation.probes import boundary, curvature, eps_curve, landscape, largest_rise
from sora.evaluation.probes._plane import plane
from sora.threat import L2, Linf, Threat

THREAT = Linf(0.1)
torch.set_num_threads(1)


def images(count: int = 12, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, 1, 4, 4, generator=generator), torch.arange(count) % 2


def smooth(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 2))


class Bumpy(nn.Module):
    """One feature, the mean pixel t: class 1 for t over 0.5, except in a narrow band just under it.

    The band makes FGSM accuracy rise again once the step has crossed it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(10.0))

    def forward(self, x: Tensor) -> Tensor:
        t = x.flatten(1).mean(1)
        band = ((t > 0.35) & (t < 0.45)).float()
        return torch.stack((torch.zeros_like(t), self.slope * (t - 0.3) - 20 * band), 1)


class TestEpsCurve:
    def test_agrees_with_evaluate_at_the_trained_radius(self) -> None:
        model, data = smooth(), images()
        curve = eps_curve(model, data, THREAT)
        found = evaluate(model, data, THREAT, ("clean", "fgsm")).accuracy
        at = dict(zip(curve["multiples"], curve["fgsm"], strict=True))
        assert at[0.0] == found["clean"]
        assert at[1.0] == found["fgsm"]
        assert (curve["multiples"][0], curve["multiples"][-1], len(curve["multiples"])) == (-2, 4, 49)
        assert [p is None for p in curve["pgd10"]] == [m < 0 for m in curve["multiples"]]

    def test_a_linear_model_never_rises(self) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
        curve = eps_curve(model, images(40), Linf(0.1, box=None))
        assert curve["index_all"] == 0
        assert curve["fgsm"][0] > curve["fgsm"][-1]

    def test_a_dip_and_a_peak_are_the_index(self) -> None:
        x = torch.full((10, 1, 4, 4), 0.5)  # class 1; a step of 0.1 lands in the band, one of 0.18 beyond it
        curve = eps_curve(Bumpy(), (x, torch.ones(10, dtype=torch.long)), THREAT)
        at = dict(zip(curve["multiples"], curve["fgsm"], strict=True))
        assert (at[0.0], at[1.0], at[1.75]) == (1.0, 0.0, 1.0)
        assert curve["index"] == 1.0
        assert curve["rise"]["from"] < curve["rise"]["to"]

    def test_a_step_against_the_gradient_helps(self) -> None:
        curve = eps_curve(smooth(), images(30), THREAT)
        at = dict(zip(curve["multiples"], curve["fgsm"], strict=True))
        assert at[-1.0] > at[0.0] > at[1.0]

    @given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
    def test_largest_rise_is_the_best_of_all_pairs(self, values: list[float]) -> None:
        pairs = [values[j] - values[i] for i in range(len(values)) for j in range(i, len(values))]
        rise = largest_rise(values)
        assert rise.size == max(pairs)
        assert values[rise.end] - values[rise.start] == rise.size
        assert rise.start <= rise.end


class TestPlane:
    @pytest.mark.parametrize("threat", [THREAT, L2(0.5)])
    def test_fgsm_lies_at_one_zero(self, threat: Threat) -> None:
        model, (x, y) = smooth(), images(1)
        around = plane(model, x, y, threat, seed=0)
        fgsm = around.at(torch.tensor(1.0), torch.tensor(0.0))
        assert around.coordinates(fgsm) == pytest.approx((1, 0, 0), abs=1e-4)
        assert float(threat.size(fgsm - x)) <= threat.eps + 1e-6

    def test_points_stay_in_the_box(self) -> None:
        model, (x, y) = smooth(), images(4)
        far = plane(model, x, y, Linf(0.9), seed=0).at(torch.tensor(2.0), torch.tensor(-2.0))
        assert 0 <= float(far.min()) <= float(far.max()) <= 1


class TestLandscape:
    def test_loss_at_the_centre_is_the_loss(self) -> None:
        model, (x, y) = smooth(), images()
        found = landscape(model, (x, y), THREAT, points=5, span=1)
        assert found["axis"] == [-1.0, -0.5, 0.0, 0.5, 1.0]
        clean = nn.functional.cross_entropy(model(x), y).item()
        assert found["loss"][2][2] == pytest.approx(clean)
        assert found["way"][0] == pytest.approx(clean)
        assert found["way"][-1] == pytest.approx(found["loss"][2][4])

    def test_bump_is_zero_where_the_loss_only_rises_and_positive_where_it_folds(self) -> None:
        assert landscape(smooth(), images(), THREAT, points=3)["bump"] == 0
        x = torch.full((3, 1, 4, 4), 0.5)
        folded = landscape(Bumpy(), (x, torch.ones(3, dtype=torch.long)), Linf(0.18), points=3)
        assert folded["bump"] > 1


class TestBoundary:
    def test_classes_and_points(self) -> None:
        model, (x, y) = smooth(), images(30)
        found = boundary(model, (x, y), THREAT, images=2, points=9)
        assert len(found["images"]) == 2
        for panel in found["images"]:
            k, centre = panel["image"], panel["classes"][4][4]
            assert centre == panel["label"] == int(model(x[k : k + 1]).argmax(1)) == int(y[k])
            assert set(panel["points"]) == {"FGSM", "FGSM-RS", "PGD-10", "SORA"}
            fgsm = panel["points"]["FGSM"]
            assert (fgsm["a"], fgsm["b"], fgsm["off_plane"]) == pytest.approx((1, 0, 0), abs=1e-3)

    def test_a_model_that_is_never_right_is_refused(self) -> None:
        x, _ = images(6)
        model = smooth()
        wrong = 1 - model(x).argmax(1)
        with pytest.raises(UserError, match="classifies none of these images rightly"):
            boundary(model, (x, wrong), THREAT)


class TestCurvature:
    @pytest.mark.parametrize("threat", [THREAT, L2(0.5)])
    def test_both_lemmas_hold_on_a_smooth_network(self, threat: Threat) -> None:
        found = curvature(smooth(), images(20), threat)
        small = found["lemma"][-1]
        assert small["step"] == threat.eps / 4096
        assert small["misalignment"] == pytest.approx([1, 1, 1], abs=0.01)
        assert small["bend"] == pytest.approx([1, 1, 1], abs=0.01)
        middle = [abs(line["misalignment"][1] - 1) for line in found["lemma"]]
        assert middle[-1] < middle[0]  # and less well for long steps

    def test_numbers_are_those_of_the_batch(self) -> None:
        numbers = curvature(smooth(), images(), THREAT)["numbers"]
        assert set(numbers) == {"pertalign", "gradalign", "linearity", "altpertalign"}
        assert 0.5 < numbers["pertalign"] <= 1


@pytest.mark.parametrize("probe", [eps_curve, landscape, boundary, curvature])
def test_a_probe_changes_nothing_and_repeats_itself(probe) -> None:
    model, data = smooth().train(), images(8)
    before, stream = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    first = probe(model, data, THREAT)
    assert torch.equal(stream, torch.get_rng_state())
    assert model.training
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert probe(model, data, THREAT) == first
