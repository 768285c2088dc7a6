"""Predicted classes around images, and where attacks end up."""

import pytest
import torch
from torch import Tensor, nn

from sora import methods
from sora.errors import UserError
from sora.methods import Crafted, Inputs, Method
from sora.probes.boundary import attack_points
from sora.threat import L2, Linf, Threat

from .toys import images, measure, smooth


def test_classes_and_points_of_a_model_that_is_correct_somewhere() -> None:
    model, (x, y) = smooth(), images(30)
    result = measure("boundary", model, (x, y), panels=2, spare=0, points=9)
    assert len(result["images"]) == 2
    for image in result["images"]:
        k, centre = image["image"], image["classes"][4][4]
        assert centre == image["label"] == int(model(x[k : k + 1]).argmax(1)) == int(y[k])
        assert set(image["points"]) == {"FGSM", "FGSM-RS", "PGD-10", "SORA"}
        fgsm = image["points"]["FGSM"]
        assert (fgsm["a"], fgsm["b"], fgsm["off_plane"]) == pytest.approx((1, 0, 0), abs=1e-3)
    x, _ = images(6)
    model = smooth()
    wrong = 1 - model(x).argmax(1)
    with pytest.raises(UserError, match="classifies none of these images correctly"):
        measure("boundary", model, (x, wrong))


@pytest.mark.parametrize("threat", [Linf(0.1), L2(0.5)], ids=["linf", "l2"])
def test_soras_start_is_the_one_it_trains_with(threat: Threat, monkeypatch: pytest.MonkeyPatch) -> None:
    """In l2 it lies on the sphere."""
    starts: dict[str, Tensor] = {}

    def note(self: Method, model: nn.Module, batch: Inputs) -> Crafted:
        starts[self.info.name] = batch.noise[0]
        return Crafted(batch.x)

    for name in ("sora", "fgsm-rs"):
        monkeypatch.setattr(methods.info(name).cls, "craft", note)
    x, y = images(30)
    attack_points(smooth(), x, y, threat, seed=0)
    sizes = {name: threat.size(start) for name, start in starts.items()}
    if threat.norm == "l2":
        assert torch.allclose(sizes["sora"], torch.tensor(threat.eps))
        assert float(sizes["fgsm-rs"].min()) < 0.9 * threat.eps
    else:
        assert starts["sora"].equal(starts["fgsm-rs"])


def test_points_of_a_model_without_gradients_are_numbers() -> None:
    x, y = images(6)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    nn.init.zeros_(model[1].weight)
    points = attack_points(model, x, y, Linf(0.1), seed=0)
    assert all(bool(each.isfinite().all()) for each in points.values())
