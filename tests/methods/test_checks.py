"""An invalid batch is refused with one clear line before anything is computed."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from sora.errors import UserError
from sora.methods import create
from sora.threat import L2, Linf

from .toys import LINF, images, two_layer


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.full((2, 2, 4, 4), 2.0), "outside the box"),
        (torch.zeros(2, 2, 4, 4, dtype=torch.uint8), "expected floats"),
        (torch.full((2, 2, 4, 4), math.nan), "NaN or infinity"),
    ],
)
def test_a_wrong_batch_is_refused(x: Tensor, message: str) -> None:
    with pytest.raises(UserError, match=message):
        create("fgsm", LINF).step(two_layer(torch.float32), x, torch.tensor([0, 1]))


def test_a_wrong_label_and_probabilities_are_noticed() -> None:
    model, (x, y) = two_layer(), images()
    with pytest.raises(UserError, match="labels run from 0 to 3, but the model has 3 classes"):
        create("fgsm", LINF).step(model, x, y + (y == 2).long())
    with pytest.raises(UserError, match="expected 6 whole numbers"):
        create("fgsm", LINF).step(model, x, y[:3])
    with pytest.warns(UserWarning, match="probabilities"):
        create("fgsm", LINF).step(nn.Sequential(model, nn.Softmax(1)), x, y)


def test_rounding_just_outside_the_box_is_accepted() -> None:
    model, (x, y) = two_layer(), images()
    create("fgsm", Linf("8/255")).step(model, x - 1e-5, y)
    create("fgsm", L2(0.5)).step(model, x + 1e-5, y)


def test_noise_of_another_shape_is_not_blamed_on_the_model() -> None:
    x, y = images()
    with pytest.raises(RuntimeError, match="size of tensor") as caught:
        create("fgsm-rs", LINF).step(two_layer(), x, y, noise=torch.zeros(6, 2, 5, 5))
    assert not isinstance(caught.value, UserError)
