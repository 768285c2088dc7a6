"""LIET: the checks of more-methods.md, section 3.7."""

import pytest
import torch
from torch.nn import functional as F

from sora.methods import create
from sora.methods._state import BatchCounter
from sora.methods.liet import divergence

from .toys import EPS, LINF, MODEL, X, Y, assert_loss, assert_same, gradient_at, passes, prepared, run

HARD = {"nu": 0.0, "lam": 0.0}


def test_divergence_is_right_and_finite_for_opposite_predictions() -> None:
    one, other = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[0.0, 1.0, 0.0]])
    assert divergence(one, other).item() == pytest.approx(0.087430, abs=1e-6)
    a, b = torch.tensor([[200.0, 0.0]], requires_grad=True), torch.tensor([[0.0, 200.0]], requires_grad=True)
    value = divergence(a, b)
    assert value.item() == pytest.approx(0.693147, abs=1e-6)
    for gradient in torch.autograd.grad(value, (a, b)):
        assert gradient.isfinite().all()


def test_the_weight_rises_linearly_over_the_epochs() -> None:
    method, constant = prepared("liet", epochs=100), prepared("liet", ramp=False)
    for epoch, expected in ((1, 1.0), (50, 50.0), (100, 100.0)):
        method.begin_epoch(epoch)
        constant.begin_epoch(epoch)
        assert method.lam.item() == pytest.approx(expected)
        assert constant.lam.item() == 100


def test_noise_everywhere_makes_fgsm_rs() -> None:
    method = prepared("liet", lo=1.0, hi=1.0, **HARD)
    replaced, noise, _ = method.draw(X)
    assert replaced.all()
    ran = run(method, noise=(replaced, noise, torch.tensor(1)))
    assert_same(ran, run(create("fgsm-rs", LINF, alpha=1.0), noise=noise))


@pytest.mark.parametrize("sign", [1, -1])
def test_without_noise_the_start_is_the_label_information(sign: int) -> None:
    method = prepared("liet", lo=0.0, hi=0.0, **HARD)
    replaced, noise, _ = method.draw(X)
    assert not replaced.any()
    grey = torch.full_like(X[:3], 0.5)  # one per class
    expected = EPS * gradient_at(MODEL, grey, torch.arange(3)).sign()
    _, seen = passes(method, noise=(replaced, noise, torch.tensor(sign)))
    torch.testing.assert_close(seen[1][1], (X + sign * expected[Y]).clamp(0, 1), rtol=0, atol=1e-7)


def test_an_epoch_of_391_batches_has_20_refreshes() -> None:
    batches = BatchCounter()
    for _ in range(2):
        batches.seen = 0
        assert sum(batches.due(20) for _ in range(391)) == 20


def test_loss_and_gradient_run_through_both_passes() -> None:
    method = prepared("liet", epochs=100, nu=0.0, lo=1.0, hi=1.0)
    method.begin_epoch(50)
    replaced, noise, sign = method.draw(X)
    ran = run(method, noise=(replaced, noise, sign))
    z0, z1 = MODEL((X + sign * noise).clamp(0, 1)), MODEL(ran[0].x_adv)
    p, q = z0.softmax(1), z1.softmax(1)
    m = (p + q) / 2
    js = (p * (p / m).log() + q * (q / m).log()).sum(1).mean() / 2
    assert_loss(ran, F.cross_entropy(z1, Y) + 50 * js)


def test_noise_replaces_a_share_between_lo_and_hi_and_a_step_may_leave_the_ball() -> None:
    method, x = prepared("liet", k=2.0), torch.zeros(64, 3, 32, 32)
    shares, signs = set(), set()
    for _ in range(20):
        replaced, noise, sign = method.draw(x)
        shares.add(replaced.float().mean().item())
        signs.add(sign.item())
        assert EPS < noise.abs().max() <= 2 * EPS
    assert 0.09 < min(shares) < max(shares) < 0.51
    assert max(shares) - min(shares) > 0.05
    assert signs == {-1, 1}
    wide, x = prepared("liet", k=2.0, lo=1.0, hi=1.0, clip_ball=False), 0.3 + 0.4 * X
    assert (run(wide, x=x)[0].x_adv - x).abs().max() > 1.5 * EPS
