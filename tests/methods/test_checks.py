"""An invalid batch, or a method that is not set up, is refused with one clear line."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sora.errors import UserError
from sora.methods import create
from sora.threat import L2, Linf

from .toys import CLASSES, IMAGE, LINF, MODEL, X, Y, images, prepared, two_layer


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


def test_a_wrong_label_and_probabilities_are_noticed_and_rounding_is_accepted() -> None:
    model, (x, y) = two_layer(), images()
    with pytest.raises(UserError, match="labels run from 0 to 3, but the model has 3 classes"):
        create("fgsm", LINF).step(model, x, y + (y == 2).long())
    with pytest.raises(UserError, match="expected 6 integers"):
        create("fgsm", LINF).step(model, x, y[:3])
    with pytest.warns(UserWarning, match="probabilities"):
        create("fgsm", LINF).step(nn.Sequential(model, nn.Softmax(1)), x, y)
    create("fgsm", Linf("8/255")).step(model, x - 1e-5, y)
    create("fgsm", L2(0.5)).step(model, x + 1e-5, y)


def test_noise_of_another_shape_is_not_blamed_on_the_model() -> None:
    x, y = images()
    with pytest.raises(RuntimeError, match="size of tensor") as caught:
        create("fgsm-rs", LINF).step(two_layer(), x, y, noise=torch.zeros(6, 2, 5, 5))
    assert not isinstance(caught.value, UserError)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("atas", "fgsm-mep", "fgsm-pco"), "stores one perturbation per image; call setup"),
        (("fgsm-bp", "tdat"), "stores one perturbation per row; call setup"),
        (("fgsm-uap",), "stores shared perturbations; call setup"),
        (("fgsm-lass",), "has a predictor of step sizes; call setup"),
        (("free",), "free holds 0 rows, the batch has 6; call setup"),
        (("liet",), "stores an image per class; call setup"),
    ],
)
def test_a_method_that_is_not_set_up_says_so(names: tuple[str, ...], message: str) -> None:
    for name in names:
        with pytest.raises(UserError, match=message):
            create(name, LINF).step(two_layer(), X, Y, index=torch.arange(6))


def test_a_missing_index_and_too_many_rows_are_noticed() -> None:
    for name in ("atas", "fgsm-mep", "fgsm-pco"):
        with pytest.raises(UserError, match=r"needs step\(\.\.\., index=\)"):
            prepared(name).step(two_layer(), X, Y)
    for name, message in (("fgsm-bp", "7 rows are stored"), ("free", "free holds 7 rows")):
        with pytest.raises(UserError, match=f"{message}, the batch has 8"):
            prepared(name).step(two_layer(), *images(8))


@pytest.mark.parametrize(
    ("name", "known", "message"),
    [
        ("fgsm-cuap", {}, "groups=class needs the number of classes; call setup"),
        ("fgsm-fuap", {"classes": CLASSES}, "groups=features needs the model; call setup"),
        ("fgsm-fuap", {"classes": CLASSES, "model": nn.Flatten()}, "needs a model whose last layer is lin"),
        ("fgsm-law", {}, r"averages weights; call setup\(model=\)"),
        ("liet", {"model": MODEL}, r"stores an image per class; call setup\(classes=\)"),
    ],
)
def test_setup_without_what_a_method_needs_is_refused(name: str, known: Any, message: str) -> None:
    sizes: Any = {"n_train": 6, "shape": IMAGE, "batch_size": 6, "epochs": 1, "steps_per_epoch": 1}
    with pytest.raises(UserError, match=message):
        create(name, LINF).setup(**sizes, **known)


def test_a_step_that_trains_nothing_is_refused() -> None:
    model, (x, y) = two_layer().requires_grad_(False), images()
    with pytest.raises(UserError, match="no parameter got a gradient"):
        create("fgsm", LINF).step(model, x, y)
