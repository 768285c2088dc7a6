import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sora.errors import UserError
from sora.models import Normalize, create

finite = st.floats(-10, 10)
positive = st.floats(1e-3, 10)


@given(st.lists(st.tuples(finite, positive), min_size=1, max_size=4))
def test_each_channel_gets_its_own_mean_and_std(channels: list[tuple[float, float]]) -> None:
    mean, std = zip(*channels, strict=True)
    x = torch.rand(2, len(channels), 3, 5)
    out = Normalize(mean, std)(x)
    for c, (m, s) in enumerate(channels):
        torch.testing.assert_close(out[:, c], (x[:, c] - m) / s)


def test_it_is_layer_zero_of_every_model_and_its_buffers_are_saved_and_not_trained() -> None:
    model = create("resnet18", 10, width=4, stages=1, mean=[0.1, 0.2, 0.3], std=[0.4, 0.5, 0.6])
    assert [name for name, _ in model.named_children()] == ["normalize", "network"]
    assert list(model.normalize.parameters()) == []
    assert sorted(model.normalize.state_dict()) == ["mean", "std"]
    assert model.normalize.mean.flatten().tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert model.normalize.std.flatten().tolist() == pytest.approx([0.4, 0.5, 0.6])
    x = torch.rand(2, 3, 8, 8)
    model.eval()
    torch.testing.assert_close(model(x), model.network(model.normalize(x)))


def test_one_number_serves_all_channels_the_defaults_change_nothing_and_grey_is_not_broadcast() -> None:
    model = create("resnet18", 10, width=4, stages=1, mean=[0.5], std=[0.25])
    assert model.normalize.mean.flatten().tolist() == [0.5] * 3
    assert model.normalize.std.flatten().tolist() == [0.25] * 3
    x = torch.rand(2, 3, 8, 8)
    assert torch.equal(create("resnet18", 10, width=4, stages=1).normalize(x), x)
    with pytest.raises(UserError, match=r"expects images of 3 channel\(s\), got 1$"):
        model(torch.rand(2, 1, 8, 8))


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        ([0.0, 0.0], [1.0], "one number per channel, got 2 and 1"),
        ([math.nan], [1.0], "mean must be finite"),
        ([0.0], [0.0], "std must be finite and > 0"),
        ([0.0], [-1.0], "std must be finite and > 0"),
        ([0.0], [math.inf], "std must be finite and > 0"),
    ],
)
def test_bad_numbers_are_refused(mean: list[float], std: list[float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Normalize(mean, std)


@pytest.mark.parametrize("what", ["mean", "std"])
def test_a_number_too_few_is_refused(what: str) -> None:
    with pytest.raises(UserError, match=rf"^{what} needs 1 number or one for each of 3 channel\(s\), got 2$"):
        create("resnet18", 10, **{what: [0.5, 0.5]})
