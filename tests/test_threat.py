import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sora.errors import UserError
from sora.threat import L2, Linf, Threat, eps_text, flat_norm, parse_eps, threat, unit

NORMS = [Linf, L2]
shapes = st.one_of(
    st.tuples(st.integers(1, 4), st.integers(1, 12)),
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 5), st.integers(1, 5)),
)
radii = st.floats(0.001, 1.0)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Gradients as they come: any size from denormal to huge, with some examples or entries all zero."""
    shape = draw(shapes)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    z = torch.randn(shape, generator=generator) * 10.0 ** draw(st.integers(-30, 30))
    keep = torch.rand(shape, generator=generator) >= draw(st.sampled_from([0.0, 0.3, 1.0]))
    z = z * keep
    z[0] *= draw(st.booleans())
    return z


def for_any_gradient(test: Callable[..., None]) -> Callable[..., None]:
    """A property of both norms, of any gradient and any radius."""
    property_of = settings(max_examples=40, deadline=None)(given(z=tensors(), eps=radii)(test))
    return pytest.mark.parametrize("norm", NORMS)(property_of)


@for_any_gradient
def test_projections_and_projected_steps_end_in_the_ball_and_change_nothing_else(norm, z, eps) -> None:
    ball = norm(eps, box=None)
    inside = ball.project(z)
    assert (ball.size(inside) <= eps * (1 + 1e-5)).all()
    torch.testing.assert_close(ball.project(inside), inside, rtol=1e-5, atol=0)
    small = unit(z) * eps * 0.99
    assert torch.equal(ball.project(small), small)
    ball, before = norm(eps), z.clone()
    x = torch.rand(z.shape, generator=torch.Generator().manual_seed(0))
    start = ball.inside(x, -z)
    moved = ball.projected_step(x, start - x, z, 3 * eps)
    assert torch.equal(moved, ball.inside(x, 3 * eps * ball.direction(z) + (start - x)))
    assert torch.equal(z, before)
    for point in (start, moved):
        assert ((point >= 0) & (point <= 1)).all()
        assert (ball.size(point - x) <= eps * (1 + 1e-5) + 1e-6).all()


@for_any_gradient
def test_a_step_is_clamped_to_the_box_but_not_projected(norm, z, eps) -> None:
    x = torch.full(z.shape, 0.5)
    free, boxed = norm(eps, box=None), norm(eps)
    moved = free.step(x, z, 3 * eps)
    length = 3 * eps * free.size(free.direction(z))
    torch.testing.assert_close(free.size(moved - x), length, rtol=1e-4, atol=1e-6)
    assert torch.equal(boxed.step(x, z, 3 * eps), moved.clamp(0, 1))


@for_any_gradient
def test_direction_has_length_one_or_zero_and_never_nan(norm, z, eps) -> None:
    ball = norm(eps, box=None)
    direction = ball.direction(z)
    assert direction.isfinite().all()
    expected = torch.where(z.flatten(1).abs().amax(1) == 0, 0.0, 1.0)
    torch.testing.assert_close(ball.size(direction), expected, rtol=1e-5, atol=1e-6)
    assert (direction * z >= 0).all()
    exact = z.double().flatten(1).norm(dim=1)  # also of tiny and huge values
    torch.testing.assert_close(flat_norm(z).flatten().double(), exact, rtol=1e-5, atol=0)


@pytest.mark.parametrize("norm", NORMS)
def test_a_step_without_normalisation_multiplies_the_gradient(norm: type[Threat]) -> None:
    x, g = torch.zeros(2, 3), torch.tensor([[0.1, -0.2, 0.3], [0.0, 0.4, 0.0]])
    ball = norm(0.5, box=None)
    torch.testing.assert_close(ball.step(x, g, 2.0, normalise=False), 2 * g)
    projected = ball.projected_step(x, 0.0, g, 2.0, normalise=False)
    torch.testing.assert_close(projected, ball.project(2 * g))


@pytest.mark.parametrize("norm", NORMS)
@settings(max_examples=30, deadline=None)
@given(shape=shapes, eps=radii, seed=st.integers(0, 2**31))
def test_random_start_is_inside_the_ball(norm, shape, eps, seed) -> None:
    ball, x = norm(eps), torch.zeros(shape)
    noise = ball.random_start(x, torch.Generator().manual_seed(seed))
    assert (ball.size(noise) <= eps * (1 + 1e-5)).all()
    again = ball.random_start(x, torch.Generator().manual_seed(seed))
    assert torch.equal(noise, again)


@settings(max_examples=30, deadline=None)
@given(shape=shapes, eps=radii, seed=st.integers(0, 2**31))
def test_sphere_has_length_exactly_eps(shape: tuple[int, ...], eps: float, seed: int) -> None:
    noise = L2(eps).sphere(torch.zeros(shape), torch.Generator().manual_seed(seed))
    torch.testing.assert_close(L2(eps).size(noise), torch.full(shape[:1], eps), rtol=1e-5, atol=0)


def test_l2_projection_keeps_the_direction_and_linfs_is_zero_without_a_gradient() -> None:
    projected = L2(1.0, box=None).project(torch.tensor([[3.0, 4.0], [0.3, 0.4]]))
    torch.testing.assert_close(projected, torch.tensor([[0.6, 0.8], [0.3, 0.4]]))
    direction = Linf(0.1).direction(torch.tensor([[2.0, 0.0, -1e-30, math.nan]]))
    assert direction.tolist() == [[1.0, 0.0, -1.0, 0.0]]
    z = torch.tensor([[-5.0, 7.0]])
    assert torch.equal(Linf(0.1, box=None).clamp(z), z)


@pytest.mark.parametrize(
    ("eps", "text"), [(8 / 255, "8/255"), (0.15, "0.15"), (0.2, "0.2"), (128 / 255, "0.502"), (0.0, "0")]
)
def test_eps_is_shown_in_pixel_levels_or_as_a_number(eps: float, text: str) -> None:
    assert eps_text(eps) == text


@pytest.mark.parametrize(("text", "value"), [("8/255", 8 / 255), ("0.5", 0.5), (0.25, 0.25), (0, 0.0)])
def test_eps_reads_numbers_and_fractions(text: float | str, value: float) -> None:
    assert parse_eps(text) == value


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        *((partial(parse_eps, text), "is not a number") for text in ("8/0", "eight", "nan", "", "1/2/3")),
        *((partial(parse_eps, value), "is not a number") for value in (math.inf, None)),
        (partial(Linf, -0.1), "negative"),
        (partial(Linf, 0.1, box=(1.0, 0.0)), "not a range"),
        (partial(threat, "l3", 0.1), r"unknown norm 'l3'.*allowed: l2, linf"),
    ],
)
def test_a_bad_radius_box_or_norm_is_refused(wrong: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        wrong()


def test_scaled_changes_the_radius_only() -> None:
    assert Linf("8/255").scaled(0.5) == Linf(4 / 255)
    assert L2(1.0, box=None).scaled(0.5) == L2(0.5, box=None)
    assert Linf(0.1) != L2(0.1)


@pytest.mark.parametrize("norm", NORMS)
def test_a_scaled_ball_may_be_larger_than_the_box(norm: type[Threat]) -> None:
    ball = norm(0.5)
    large = ball.scaled(4)
    assert (large.eps, large.given, large.box) == (2.0, "2.0", (0.0, 1.0))
    assert (ball.eps, ball.given) == (0.5, "0.5")
    assert large.inside(torch.zeros(1, 3), torch.full((1, 3), 9.0)).max() <= 1


def test_norms_of_large_images_do_not_overflow_in_half_precision() -> None:
    ones = torch.ones(1, 3, 224, 224, dtype=torch.float16)
    length = (3 * 224 * 224) ** 0.5
    assert flat_norm(ones).item() == pytest.approx(length, rel=1e-3)
    assert unit(ones).dtype == torch.float16
    assert unit(ones)[0, 0, 0, 0].item() == pytest.approx(1 / length, rel=1e-2)
