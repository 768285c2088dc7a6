"""Predicted classes around images, and where attacks end up."""

from __future__ import annotations

import pytest

from sora.errors import UserError

from .toys import images, measure, smooth


def test_classes_and_points() -> None:
    model, (x, y) = smooth(), images(30)
    result = measure("boundary", model, (x, y), panels=2, spare=0, points=9)
    assert len(result["images"]) == 2
    for image in result["images"]:
        k, centre = image["image"], image["classes"][4][4]
        assert centre == image["label"] == int(model(x[k : k + 1]).argmax(1)) == int(y[k])
        assert set(image["points"]) == {"FGSM", "FGSM-RS", "PGD-10", "SORA"}
        fgsm = image["points"]["FGSM"]
        assert (fgsm["a"], fgsm["b"], fgsm["off_plane"]) == pytest.approx((1, 0, 0), abs=1e-3)


def test_a_model_that_is_never_correct_is_refused() -> None:
    x, _ = images(6)
    model = smooth()
    wrong = 1 - model(x).argmax(1)
    with pytest.raises(UserError, match="classifies none of these images correctly"):
        measure("boundary", model, (x, wrong))
