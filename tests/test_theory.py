"""The paper's statements on losses that are exactly quadratic, and the page that lists them."""

import ast
import math
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sora.curvature import alt_pert_align, linearity, optimal_step, pert_align

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
SHORT = 1e-5


def quadratic(seed: int, size: int = 6) -> tuple[Tensor, Tensor]:
    """A gradient and a symmetric Hessian with eigenvalues of both signs."""
    generator = torch.Generator().manual_seed(seed)
    g = torch.randn(size, generator=generator, dtype=torch.float64)
    square = torch.randn(size, size, generator=generator, dtype=torch.float64)
    return g, (square + square.T) / 2


def aligned(g: Tensor, g_adv: Tensor) -> float:
    return pert_align(g[None], g_adv[None]).item()


def along_gradient(g: Tensor, hessian: Tensor) -> tuple[float, float]:
    """`k = g.Hg / ||g||^2` and the spectral norm."""
    return (g @ hessian @ g / (g @ g)).item(), torch.linalg.matrix_norm(hessian, 2).item()


# Lemma A.1 with its remarks.


@pytest.mark.parametrize("seed", range(5))
def test_the_hessian_lemma_holds_for_any_direction(seed: int) -> None:
    g, hessian = quadratic(seed)
    v = torch.randn(6, generator=torch.Generator().manual_seed(seed + 100), dtype=torch.float64)
    h = hessian @ v / g.norm()
    across = h - (h @ g) / (g @ g) * g
    step = 1e-3
    measured = (1 - aligned(g, g + step * hessian @ v)) / (step**2 / 2)
    assert measured == pytest.approx((across @ across).item(), rel=0.05)


def test_the_newton_direction_does_not_turn_the_gradient() -> None:
    g, hessian = quadratic(0)
    assert aligned(g, g + 0.5 * hessian @ torch.linalg.pinv(hessian) @ g) == pytest.approx(1, abs=1e-12)
    assert aligned(g, g + 0.5 * hessian @ g) < 0.99


def test_a_gradient_that_is_an_eigenvector_is_not_turned() -> None:
    _, hessian = quadratic(1)
    for vector in torch.linalg.eigh(hessian).eigenvectors.T:
        assert aligned(vector, vector + 0.1 * hessian @ vector) == pytest.approx(1, abs=1e-12)


# Lemma A.5, the upper bound.


def test_the_printed_bound_fails_for_every_short_step() -> None:
    g, hessian = torch.tensor([1.0, 2.0], dtype=torch.float64), torch.diag(torch.tensor([1.0, -1.0]).double())
    k, norm = along_gradient(g, hessian)
    for step in (0.1, 0.01, 0.001):
        assert 1 - aligned(g, g + step * hessian @ g) > step**2 / 2 * (norm**2 - k**2)


def test_both_printed_bounds_fail_once_the_gradient_has_turned_round() -> None:
    g, hessian = torch.tensor([1.0, 0.0], dtype=torch.float64), torch.diag(torch.tensor([-1.0, 0.0]).double())
    assert 1 - aligned(g, g + 1.5 * hessian @ g) == pytest.approx(2)
    assert 1.5**2 / 2 < 2  # and the tighter bound is 0


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("step", [1e-3, 0.1, 0.3, 3.0])
def test_the_corrected_bounds_hold(seed: int, step: float) -> None:
    g, hessian = quadratic(seed)
    k, norm = along_gradient(g, hessian)
    misaligned = 1 - aligned(g, g + step * hessian @ g)
    if k >= 0:
        assert misaligned <= step**2 / 2 * (norm**2 - k**2) + 1e-12
    if 1 + step * k > 0:
        assert misaligned <= step**2 / 2 * (norm**2 - k**2) / (1 + step * k) ** 2 + 1e-12
    if step * norm <= 1:
        assert misaligned <= 1 - math.sqrt(1 - (step * norm) ** 2) + 1e-12


# Lemma A.8, AltPertAlign.


@pytest.mark.parametrize("seed", range(5))
def test_alt_pert_align_has_the_sign_of_its_proof_not_the_printed_one(seed: int) -> None:
    g, hessian = quadratic(seed)
    p = g.sign()
    measured = (1 - alt_pert_align(g[None], (g + SHORT * hessian @ p)[None]).item()) / SHORT
    proof = (g @ hessian @ p / (g @ g) - p @ hessian @ p / g.abs().sum()).item()
    printed = (p @ hessian @ p / g.abs().sum() - g @ hessian @ p / (g @ g)).item()
    assert measured == pytest.approx(proof, rel=1e-2)
    assert measured == pytest.approx(-printed, rel=1e-2)


def test_beta_counts_only_the_pixels_that_have_a_gradient() -> None:
    g = torch.tensor([3.0, -1.0, 0.0, 0.0], dtype=torch.float64)
    cosine = g.abs().sum() / (g.norm() * g.sign().norm())
    assert alt_pert_align(g[None], g[None]).item() == pytest.approx(1)
    assert (g.sign().norm() * g.norm() / g.abs().sum() * cosine).item() == pytest.approx(1)
    assert (math.sqrt(4) * g.norm() / g.abs().sum() * cosine).item() == pytest.approx(math.sqrt(2))


# Propositions A.6 and A.7, and what the fixed numerator changes.


def test_a_fixed_numerator_is_the_maximiser_only_after_a_step_of_that_length() -> None:
    g, hessian = (
        torch.tensor([3.0, -1.0], dtype=torch.float64),
        torch.diag(torch.tensor([-2.0, -4.0]).double()),
    )
    p = g.sign()
    peak = (-(g @ p) / (p @ hessian @ p)).item()
    for taken in (0.02, 0.1, 0.5):
        c = linearity(g[None], (g + taken * hessian @ p)[None])
        assert optimal_step(c, taken, math.inf).item() == pytest.approx(peak)
        assert optimal_step(c, 0.02, math.inf).item() == pytest.approx(peak * 0.02 / taken)


@pytest.mark.parametrize(("sample", "factor"), [(False, 1.0), (True, 2.0)])
def test_algorithm_1_settles_between_its_numerator_and_the_peak(sample: bool, factor: float) -> None:
    generator = torch.Generator().manual_seed(0)
    size, curvature, alpha0 = 4000, 5.0, 0.02
    g = torch.ones(1, size, dtype=torch.float64)  # L = sum(x) - curvature ||x||^2 / 2 peaks at 1/curvature
    v, step = torch.tensor(0.99, dtype=torch.float64), math.inf
    for _ in range(400):
        step = optimal_step(v, alpha0, 1.0).item()
        taken = step * (torch.rand(1, size, generator=generator, dtype=torch.float64) if sample else 1.0)
        v = 0.95 * v + 0.05 * linearity(g, g - curvature * taken * g.sign())
    assert step == pytest.approx(math.sqrt(factor * alpha0 / curvature), rel=0.01)


# Appendix C: ZeroGrad.


def test_the_rise_of_the_loss_is_a_sum_over_pixels_plus_one_over_eigenvectors() -> None:
    g, hessian = quadratic(2)
    step = 0.3 * (g.abs() > 0.5) * g.sign()
    values, vectors = torch.linalg.eigh(hessian)
    h = vectors.T @ step
    rise = g @ step + step @ hessian @ step / 2
    torch.testing.assert_close(rise, (step.abs() * g.abs()).sum() + (values * h.square()).sum() / 2)


def test_leaving_out_a_pixel_of_small_gradient_can_lower_the_loss() -> None:
    g = torch.tensor([1.0, 0.01], dtype=torch.float64)
    hessian = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    full, zeroed = torch.tensor([1.0, 1.0]).double(), torch.tensor([1.0, 0.0]).double()
    rises = [g @ step + step @ hessian @ step / 2 for step in (full, zeroed)]
    assert rises[0] > rises[1]


# docs/theory.md.


def test_every_test_named_on_the_page_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
    assert len(named) > 20
    for file, name in named:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert name in functions, f"{file} has no {name}"


def test_the_page_has_every_statement_of_the_paper() -> None:
    source = ROOT.parent / "shared" / "paper" / "sora.tex"
    if not source.exists():
        pytest.skip("the paper's source is not beside the checkout")
    text = source.read_text(encoding="utf-8")
    kinds = "definition|lemma|proposition|theorem|remark|corollary"
    blocks = re.findall(rf"\\begin\{{({kinds})\}}(.*?)\\end\{{\1\}}", text, re.DOTALL)
    labels = [label for _, body in blocks for label in re.findall(r"\\label\{([^}]+)\}", body)]
    assert len(blocks) == 10
    assert {label for label in labels if not label.startswith("eq:")} <= set(re.findall(r"`([\w:]+)`", PAGE))
