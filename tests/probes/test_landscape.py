"""The plane through the FGSM example, and the loss over it."""

import pytest
import torch
from torch import nn

from sora.probes.landscape import plane
from sora.threat import L2, Linf, Threat

from ..no_float64 import without_float64
from .toys import THREAT, Bumpy, images, measure, smooth


@pytest.mark.parametrize("threat", [THREAT, L2(0.5)])
def test_the_fgsm_example_is_at_one_zero(threat: Threat) -> None:
    model, (x, y) = smooth(), images(1)
    around = plane(model, x, y, threat, seed=0)
    fgsm = around.at(torch.tensor(1.0), torch.tensor(0.0))
    assert around.coordinates(fgsm) == pytest.approx((1, 0, 0), abs=1e-4)
    assert float(threat.size(fgsm - x)) <= threat.eps + 1e-6


def test_points_of_the_plane_stay_in_the_box_and_the_centre_has_the_clean_loss() -> None:
    model, (x, y) = smooth(), images(4)
    far = plane(model, x, y, Linf(0.9), seed=0).at(torch.tensor(2.0), torch.tensor(-2.0))
    assert 0 <= float(far.min()) <= float(far.max()) <= 1
    model, (x, y) = smooth(), images()
    surface = measure("landscape", model, (x, y), points=5, span=1)
    assert surface["axis"] == [-1.0, -0.5, 0.0, 0.5, 1.0]
    clean = nn.functional.cross_entropy(model(x), y).item()
    assert surface["loss"][2][2] == pytest.approx(clean)
    assert surface["way"][0] == pytest.approx(clean)
    assert surface["way"][-1] == pytest.approx(surface["loss"][2][4])


def test_bumps_are_behind_hills_and_coordinates_are_found_without_float64() -> None:
    assert measure("landscape", smooth(), images(), points=3)["bump"] == 0
    x = torch.full((3, 1, 4, 4), 0.5)
    data = (x, torch.ones(3, dtype=torch.long))
    assert measure("landscape", Bumpy(), data, Linf(0.18), points=3)["bump"] > 1
    x, y = images(1)
    around = plane(smooth(), x, y, THREAT, seed=0)
    point = around.at(torch.tensor(0.5), torch.tensor(-0.25))
    there = around._replace(**{name: without_float64(getattr(around, name)) for name in ("x", "u", "v")})
    assert there.coordinates(without_float64(point)) == around.coordinates(point)
