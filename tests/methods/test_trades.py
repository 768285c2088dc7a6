import pytest
import torch
from torch.nn import functional as F

from sora.methods import create
from sora.methods.trades import divergence

from .toys import BALLS, EPS, LINF, MODEL, X, Y, assert_loss, batchnorm, passes, run


def test_loss_and_gradient_run_through_both_sides_of_the_divergence() -> None:
    ran = run(create("trades", LINF))
    p, q = MODEL(X).log_softmax(1), MODEL(ran[0].x_adv).log_softmax(1)
    assert_loss(ran, F.cross_entropy(MODEL(X), Y) + 6 * (p.exp() * (p - q)).sum(1).mean())


@pytest.mark.parametrize(("norm", "length"), [("linf", EPS / 4), ("l2", 2 * 0.5 / 4)])
def test_attack_ascends_the_divergence_step_by_step(norm: str, length: float) -> None:
    """In linf the ball comes before the box; in l2, with steps of 2 eps / K, after it, as the authors do."""
    noise = 0.001 * torch.randn(X.shape, dtype=X.dtype, generator=torch.Generator().manual_seed(2))
    out, _ = run(create("trades", BALLS[norm], steps=4), noise=noise)
    at, p = X + noise, MODEL(X).detach().softmax(1)
    for _ in range(4):
        leaf = at.clone().requires_grad_()
        (g,) = torch.autograd.grad((p * (p.log() - MODEL(leaf).log_softmax(1))).sum(), leaf)
        if norm == "linf":
            at = (X + (at - X + length * g.sign()).clamp(-EPS, EPS)).clamp(0, 1)
        else:
            g = g / g.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
            at = X + torch.renorm((at + length * g).clamp(0, 1) - X, 2, 0, 0.5)
    torch.testing.assert_close(out.x_adv, at, rtol=0, atol=1e-9 if norm == "linf" else 1e-6)
    assert out.step_size.item() == pytest.approx(length)


def test_passes_are_clean_adversarial_and_clean_and_gradients_finite_at_underflows() -> None:
    x = X.float()
    out, seen = passes(create("trades", LINF), batchnorm(), x)
    assert [training for training, _ in seen] == [False] * 11 + [True] * 3  # these move BatchNorm
    for (_, inputs), wanted in zip(seen[-3:], (x, out.x_adv, x), strict=True):
        assert torch.equal(inputs, wanted)
    clean = torch.tensor([[200.0, 0.0, -200.0]], requires_grad=True)
    divergence(clean, torch.tensor([[0.0, 200.0, 0.0]])).sum().backward()
    assert clean.grad is not None
    assert clean.grad.isfinite().all()
