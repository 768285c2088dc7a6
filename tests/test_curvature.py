import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sora.curvature import alt_pert_align, cosine, linearity, linearity_terms, optimal_step, pert_align

# The analytic quadratic L(x) = b.x + x.Hx/2 of the reference numbers, at a point whose gradient is G.
H = torch.diag(torch.tensor([-2.0, -4.0], dtype=torch.float64))
G = torch.tensor([[3.0, -1.0]], dtype=torch.float64)
P = G.sign()


def after(step: float, direction: Tensor, hessian: Tensor = H) -> Tensor:
    """Gradient of the quadratic after a step along a direction."""
    return G + step * direction @ hessian


def value(number: Tensor) -> float:
    return number.item()


# Lemma checks.


@pytest.mark.parametrize(("step", "coefficient"), [(0.1, 0.85), (0.01, 0.985), (0.001, 0.9985)])
def test_optimal_step_is_the_maximiser_along_the_sign_whatever_the_step(step, coefficient) -> None:
    torch.testing.assert_close(after(0.1, P), torch.tensor([[2.8, -0.6]], dtype=torch.float64))
    v = linearity(G, after(step, P))
    assert value(v) == pytest.approx(coefficient, abs=1e-12)
    best = value(optimal_step(v, step, math.inf))
    assert best == pytest.approx(2 / 3, abs=1e-9)
    grid = torch.linspace(0, 2, 20_001, dtype=torch.float64)
    rise = grid * (G * P).sum() + 0.5 * grid.square() * (P @ H * P).sum()
    assert best == pytest.approx(value(grid[rise.argmax()]), abs=1e-4)


@pytest.mark.parametrize(
    ("length", "coefficient", "optimum"), [(1.0, 0.78, 5 / 11), (math.sqrt(10), 0.930430, 1.437399)]
)
def test_l2_coefficient_and_optimum(length: float, coefficient: float, optimum: float) -> None:
    """Along the gradient as it is, and along its unit vector."""
    torch.testing.assert_close(after(0.1, G), torch.tensor([[2.4, -0.6]], dtype=torch.float64))
    v = linearity(G, after(0.1, G / length), "l2")
    assert value(v) == pytest.approx(1 - 0.22 / length, abs=1e-12)
    assert value(v) == pytest.approx(coefficient, abs=1e-6)
    assert value(optimal_step(v, 0.1, math.inf)) == pytest.approx(length * 5 / 11, abs=1e-9)
    assert length * 5 / 11 == pytest.approx(optimum, abs=1e-6)


def test_l2_coefficient_is_pert_align_times_the_ratio_of_lengths() -> None:
    g, g_adv = torch.randn(2, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ratios = g_adv.norm(dim=1) / g.norm(dim=1)
    expected = (ratios * cosine(g, g_adv)[0]).mean()
    torch.testing.assert_close(linearity(g, g_adv, "l2"), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("direction", "step", "expected"),
    [
        *((P, 0.1, 1.22325), (P, 0.01, 1.02023), (P, 0.001, 1.00200)),
        *((G, 0.1, 0.58910), (G, 0.01, 0.37637), (G, 0.001, 0.36159)),
    ],
)
def test_pert_align_follows_its_lemma(direction: Tensor, step: float, expected: float) -> None:
    """Along the sign and along the gradient."""
    loss = (1 - value(pert_align(G, after(step, direction)))) / (step**2 / 2)
    assert loss == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("direction", "k", "limit", "bound"), [(P, -1.0, 1.0, 15.0), (G, -2.2, 0.36, 11.16)])
def test_limit_and_upper_bound_of_pert_align(direction: Tensor, k: float, limit: float, bound: float) -> None:
    assert value((G @ H * direction).sum() / G.square().sum()) == pytest.approx(k)
    assert value((direction @ H - k * G).square().sum() / G.square().sum()) == pytest.approx(limit)
    assert (1 - value(pert_align(G, after(1e-4, direction)))) / (1e-8 / 2) == pytest.approx(limit, abs=1e-3)
    assert value(torch.linalg.matrix_norm(H, 2)) ** 2 - k**2 == pytest.approx(bound)
    assert limit <= bound


@pytest.mark.parametrize(("step", "expected"), [(0.1, 0.61332), (0.01, 0.51013), (0.001, 0.50100)])
def test_alt_pert_align_follows_the_proof_of_its_lemma(step: float, expected: float) -> None:
    assert (1 - value(alt_pert_align(G, after(step, P)))) / step == pytest.approx(expected, abs=1e-5)
    assert value(alt_pert_align(G, G)) == pytest.approx(1.0, abs=1e-12)


def test_a_loss_that_does_not_curve_down_gets_one_or_more_and_the_largest_step() -> None:
    g_adv = after(0.1, P, torch.zeros_like(H))
    assert value(pert_align(G, g_adv)) == pytest.approx(1.0, abs=1e-12)
    assert value(linearity(G, g_adv)) == pytest.approx(1.0, abs=1e-12)
    assert value(optimal_step(linearity(G, g_adv), 0.02, 0.0627)) == 0.0627
    v = linearity(G, after(0.1, P, -H))
    assert value(v) > 1
    assert value(optimal_step(v, 0.02, 0.0627)) == 0.0627


@settings(max_examples=40, deadline=None)
@given(exponent=st.integers(-35, 30), other=st.integers(-3, 3))
def test_rescaling_the_loss_changes_nothing(exponent: int, other: int) -> None:
    factor = 10.0**exponent * 2.0**other
    g_adv = after(0.1, P)
    for measure in (pert_align, alt_pert_align, linearity, partial(linearity, norm="l2")):
        small = measure((G * factor).float(), (g_adv * factor).float())
        assert value(small) == pytest.approx(value(measure(G, g_adv)), rel=1e-5)


def test_a_linear_classifier_under_cross_entropy_has_a_coefficient_above_one() -> None:
    w = torch.tensor([0.7, -0.3], dtype=torch.float64)  # ||w||_1 = 1, the margin falls along -sign(w)
    x = torch.tensor([[2.0, -2.0]], dtype=torch.float64)  # margin w.x = 2

    def gradient(z: Tensor) -> Tensor:
        leaf = z.clone().requires_grad_()
        torch.nn.functional.softplus(-(leaf @ w)).sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    g = gradient(x)
    v = linearity(g, gradient(x + 1.0 * g.sign()))
    assert value(v) == pytest.approx(2.256165, abs=1e-6)


# Edge cases.


def rows(*vectors: list[float]) -> Tensor:
    return torch.tensor(vectors)


def test_all_zero_gradients_are_left_out_or_count_zero_in_linearity() -> None:
    g, g_adv = rows([3, -1], [0, 0]), rows([2.8, -0.6], [5, 5])
    for measure in (pert_align, alt_pert_align, linearity, partial(linearity, norm="l2")):
        assert value(measure(g, g_adv)) == pytest.approx(value(measure(g[:1], g_adv[:1])))
    g, g_adv = rows([3, -1], [3, -1]), rows([2.8, -0.6], [0, 0])
    assert value(pert_align(g, g_adv)) == pytest.approx(value(pert_align(g[:1], g_adv[:1])))
    assert value(linearity(g, g_adv)) == pytest.approx(0.85 / 2, abs=1e-6)


@pytest.mark.parametrize("measure", [pert_align, alt_pert_align, linearity])
def test_no_example_left_gives_nan(measure: Callable[..., Tensor]) -> None:
    assert math.isnan(value(measure(torch.zeros(3, 4), torch.ones(3, 4))))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("measure", [pert_align, alt_pert_align, linearity])
def test_a_gradient_that_is_not_finite_gives_a_result_that_is_not_finite(measure, bad) -> None:
    good = rows([3, -1], [1, 2])
    broken = rows([3, -1], [bad, 2])
    assert not math.isfinite(value(measure(broken, good)))
    assert not math.isfinite(value(measure(good, broken)))


def test_ratio_of_sums_weighs_examples_by_their_size_and_terms_add_up_over_parts() -> None:
    g, g_adv = rows([3, -1], [30, -10]), rows([2.8, -0.6], [0, 0])
    assert value(linearity(g, g_adv, ratio_of_sums=True)) == pytest.approx(3.4 / 44, abs=1e-6)
    top, bottom = linearity_terms(g, g_adv, ratio_of_sums=True)
    assert (value(top), value(bottom)) == (pytest.approx(3.4), pytest.approx(44))
    g, g_adv = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(1))
    parts = linearity_terms(g[:2], g_adv[:2]) + linearity_terms(g[2:], g_adv[2:])
    assert value(parts[0] / parts[1]) == pytest.approx(value(linearity(g, g_adv)), rel=1e-5)


@pytest.mark.parametrize("v", [1.0, 1.3, 1 - 1e-9, 1e30])
def test_optimal_step_at_and_beyond_one_is_the_largest(v: float) -> None:
    assert value(optimal_step(torch.tensor(v), 0.02, 0.0627)) == pytest.approx(0.0627)


def test_optimal_step_of_very_negative_and_undefined_coefficients_and_without_room() -> None:
    steps = optimal_step(torch.tensor([-1e3, -1e6, -1e30]), 0.02, 0.0627)
    assert (steps > 0).all()
    assert value(steps[0]) == pytest.approx(0.02 / 1001)
    assert (steps.diff() < 0).all()
    steps = optimal_step(torch.tensor([torch.nan, 0.5, 1.0]), 0.02, 0.0627)
    assert steps.isnan().tolist() == [True, False, False]
    assert value(optimal_step(torch.tensor(0.5), 0.02, 0.0)) == 0.0


# The cosine rule.


def test_cosine_of_equal_tiny_vectors_is_one() -> None:
    tiny = torch.full((1, 4), 1e-9)
    assert value(cosine(tiny, tiny)[0]) == pytest.approx(1.0, abs=1e-6)
    library = value(torch.nn.functional.cosine_similarity(tiny, tiny))
    assert library < 0.1  # why the library's cosine is not used


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), a=st.integers(-35, 30), b=st.integers(-35, 30))
def test_cosine_does_not_depend_on_lengths(seed: int, a: int, b: int) -> None:
    x, y = torch.randn(2, 3, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    expected = (x * y).flatten(1).sum(1) / (x.flatten(1).norm(dim=1) * y.flatten(1).norm(dim=1))
    cos, defined = cosine((x * 10.0**a).float(), (y * 10.0**b).float())
    assert defined.all()
    torch.testing.assert_close(cos.double(), expected, rtol=0, atol=1e-5)
    assert (cos.abs() <= 1 + 1e-6).all()


def test_cosine_drops_pairs_with_a_zero_vector_and_its_gradient_is_exact_and_there_zero() -> None:
    a = torch.tensor([[1.0, 2.0], [0.0, 0.0], [3.0, 1.0]], requires_grad=True)
    b = torch.tensor([[2.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
    cos, defined = cosine(a, b)
    assert defined.tolist() == [True, False, False]
    torch.where(defined, cos, 0.0).sum().backward()
    assert a.grad is not None
    assert a.grad.isfinite().all()
    assert (a.grad[1:] == 0).all()
    assert (a.grad[0] != 0).all()
    a, b = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    assert torch.autograd.gradcheck(lambda z: cosine(z, b)[0], a.requires_grad_())
