import pytest
import torch

from sora.methods import create
from sora.methods.zerograd import without_smallest

from .toys import EPS, ETA, LINF, MODEL, X, Y, gradient_at, run


@pytest.mark.parametrize(
    ("q", "expected"), [(0.5, [3, -4]), (0.35, [3, -4]), (0.0, [1, -2, 3, -4]), (1.0, [-4])]
)
def test_quantile_of_one_to_four(q: float, expected: list[float]) -> None:
    g = torch.tensor([[1.0, -2.0, 3.0, -4.0]])
    assert [value for value in without_smallest(g, q)[0].tolist() if value] == expected


@pytest.mark.parametrize("q", [0.5, 0.35])
def test_each_example_has_its_own_interpolated_threshold(q: float) -> None:
    generator = torch.Generator().manual_seed(0)
    g = torch.randn(5, 3, 7, 9, generator=generator, dtype=torch.float64)
    size = g.flatten(1).abs()
    expected = torch.where(size < torch.quantile(size, q, dim=1, keepdim=True), 0.0, g.flatten(1))
    assert torch.equal(without_smallest(g, q), expected.view_as(g))


def test_equal_entries_are_kept_and_end_on_the_border_and_zeroed_ones_keep_their_noise() -> None:
    g = torch.full((2, 5), 0.3)
    assert torch.equal(without_smallest(g, 0.45), g)
    out, _ = run(create("zerograd", LINF, q=0.5), noise=ETA)
    start = (X + ETA).clamp(0, 1)
    g = gradient_at(MODEL, start, Y)
    large = without_smallest(g, 0.5) != 0
    assert large.flatten(1).sum(1).tolist() == [16] * 6
    expected = torch.where(large, (X + EPS * g.sign()).clamp(0, 1), start)
    torch.testing.assert_close(out.x_adv, expected, rtol=0, atol=1e-9)
