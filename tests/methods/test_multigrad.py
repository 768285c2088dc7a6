import pytest
import torch

from sora import curvature
from sora.methods import create
from sora.methods.multigrad import consensus

from .toys import EPS, LINF, MODEL, X, Y, assert_same, gradient_at, run, uniform


@pytest.mark.parametrize(
    ("signs", "agree", "expected"),
    [((1, 1, -1), 3, 0), ((1, 1, 1), 3, 1), ((1, 1, 0), 3, 0), ((0, 0, 0), 3, 0), ((1, 1, -1), 2, 1)],
)
def test_enough_signs_must_agree(signs: tuple[int, ...], agree: int, expected: int) -> None:
    gradients = torch.tensor(signs, dtype=torch.float32).view(3, 1, 1) * 1e-9
    assert consensus(gradients, agree).item() == expected
    assert consensus(-gradients, agree).item() == -expected


def test_agreed_pixels_move_by_eps_from_the_clean_image_and_the_noise_is_dropped() -> None:
    noise = tuple(uniform(X, eps=10 * EPS, seed=seed) for seed in range(3))
    out, _ = run(create("multigrad", LINF), noise=noise)
    signs = torch.stack([gradient_at(MODEL, (X + eta).clamp(0, 1), Y).sign() for eta in noise])
    agreed = (signs == signs[0]).all(0) & (signs[0] != 0)
    assert 0 < agreed.double().mean() < 1
    expected = torch.where(agreed, (X + EPS * signs[0]).clamp(0, 1), X)
    torch.testing.assert_close(out.x_adv, expected, rtol=0, atol=1e-9)


def test_one_pass_over_all_copies_equals_a_loop_and_pert_align_uses_their_mean_gradient() -> None:
    noise = tuple(uniform(X, seed=seed) for seed in range(3))
    one, other = (
        run(create("multigrad", LINF, parallel=parallel), noise=noise) for parallel in (True, False)
    )
    assert_same(one, other)
    torch.testing.assert_close(one[0].linearity, other[0].linearity)
    out, _ = run(create("multigrad", LINF), noise=noise)
    g = torch.stack([gradient_at(MODEL, (X + eta).clamp(0, 1), Y) for eta in noise]).mean(0)
    g_adv = gradient_at(MODEL, out.x_adv, Y)
    torch.testing.assert_close(out.pert_align, curvature.pert_align(g, g_adv))
    torch.testing.assert_close(out.linearity, curvature.linearity(g, g_adv))
