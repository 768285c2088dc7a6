"""The checks of the first batch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sora import evaluate
from sora._devices import device_for_float64
from sora.errors import UserError
from sora.evaluation.validity import relative_difference
from sora.threat import Linf

from ..no_float64 import without_float64


def test_outputs_are_compared_on_a_device_without_float64() -> None:
    a, b = torch.rand(4, 5), torch.rand(4, 5)
    assert relative_difference(without_float64(a), without_float64(b)).equal(relative_difference(a, b))
    assert device_for_float64(torch.device("mps")) == torch.device("cpu")
    assert device_for_float64(torch.device("cuda:1")) == torch.device("cuda:1")


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_labels_of_any_integer_type_give_the_same_numbers(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(27, 20))
    x, y = torch.rand(40, 3, 3, 3), torch.arange(40) % 20
    result = evaluate(model, (x, y.to(dtype)), Linf(0.1), "clean,fgsm")
    expected = evaluate(model, (x, y), Linf(0.1), "clean,fgsm")
    assert result.record() == expected.record()
    assert result.confusion("fgsm").equal(expected.confusion("fgsm"))
    assert result.per_class("fgsm") == expected.per_class("fgsm")


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_labels_that_are_not_whole_numbers_are_refused(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(27, 4))
    with pytest.raises(UserError, match="whole numbers"):
        evaluate(model, (torch.rand(2, 3, 3, 3), torch.tensor([0, 1]).to(dtype)), Linf(0.1), "clean")
