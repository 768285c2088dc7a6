"""FGSM, FGSM-RS, N-FGSM, PGD, and ordinary training."""

import pytest
import torch
from torch import nn

from sora import curvature
from sora.methods import create

from .toys import BALLS, EPS, ETA, LINF, MODEL, X, Y, batchnorm, gradient_at, images, line, run, two_layer


def test_linear_loss_moves_every_pixel_by_eps_up_to_the_box_except_one_without_gradient() -> None:
    weights = torch.linspace(0.1, 1.0, 32, dtype=torch.float64)
    weights[5] = 0.0
    x = torch.full((2, 2, 4, 4), 0.5, dtype=torch.float64)
    x[1] = 0.99
    out, _ = run(create("fgsm", LINF), line(weights), x, torch.tensor([1, 1]))
    moved = weights.view(2, 4, 4) != 0
    torch.testing.assert_close(out.x_adv[0], torch.where(moved, x[0] + EPS, x[0]), rtol=0, atol=1e-12)
    assert torch.equal(out.x_adv[1], torch.where(moved, 1.0, x[1]))


def test_l2_step_has_length_eps_along_the_gradient() -> None:
    x = 0.4 + 0.2 * X  # far from the box, so that nothing is cut off
    threat = BALLS["l2"].scaled(0.1)
    out, _ = run(create("fgsm", threat), x=x)
    g = gradient_at(MODEL, x, Y).flatten(1)
    expected = x.flatten(1) + threat.eps * g / g.norm(dim=1, keepdim=True)
    torch.testing.assert_close(out.x_adv.flatten(1), expected, rtol=0, atol=1e-9)


def test_a_step_scales_with_eps_and_a_longer_one_is_clipped_to_the_ball() -> None:
    half, small = (run(create("fgsm", LINF, alpha=0.5))[0], run(create("fgsm", LINF.scaled(0.5)))[0])
    assert torch.equal(half.x_adv, small.x_adv)
    for norm, threat in BALLS.items():
        long, plain = (run(create("fgsm", threat, alpha=alpha))[0] for alpha in (2.0, 1.0))
        assert (threat.size(long.x_adv - X) <= threat.eps + 1e-9).all(), norm
        torch.testing.assert_close(long.x_adv, plain.x_adv, rtol=0, atol=1e-9)


@pytest.mark.parametrize("alpha", [0, 1.25])
def test_fgsm_rs_steps_from_the_clamped_noise(alpha: float) -> None:
    start = (X + ETA).clamp(0, 1)
    assert (start != X + ETA).any()  # the box did cut some noise off
    delta = (start - X + alpha * EPS * gradient_at(MODEL, start, Y).sign()).clamp(-EPS, EPS)
    out, _ = run(create("fgsm-rs", LINF, alpha=alpha), noise=ETA)
    torch.testing.assert_close(out.x_adv, (X + delta).clamp(0, 1), rtol=0, atol=1e-12)


def test_n_fgsm_reaches_up_to_three_eps_and_pgd_10_the_corner_of_a_linear_loss() -> None:
    out, _ = run(create("n-fgsm", LINF))
    assert EPS < (out.x_adv - X).abs().max() <= 3 * EPS + 1e-6
    (eta,) = create("n-fgsm", LINF, k=4).draw(torch.zeros(50, 2, 4, 4))
    assert 3.9 * EPS < eta.abs().max() <= 4 * EPS
    weights = torch.linspace(-1.0, 1.1, 32, dtype=torch.float64)
    out, _ = run(create("pgd-10", LINF), line(weights), y=torch.ones_like(Y))
    corner = (X + EPS * weights.sign().view(2, 4, 4)).clamp(0, 1)
    torch.testing.assert_close(out.x_adv, corner, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("name", "steps", "alpha"), [("pgd-2", 2, 0.5), ("pgd-10", 10, 0.25)])
def test_presets_of_pgd_are_the_papers(name: str, steps: int, alpha: float) -> None:
    method = create(name, LINF)
    assert (method.hyper.steps, method.hyper.alpha) == (steps, alpha)


@pytest.mark.parametrize("name", ["fgsm-rs", "gradalign", "zerograd"])
def test_pert_align_compares_the_gradients_at_the_noisy_start_and_at_the_end(name: str) -> None:
    out, _ = run(create(name, LINF), noise=ETA)
    g, g_adv = (gradient_at(MODEL, z, Y) for z in ((X + ETA).clamp(0, 1), out.x_adv))
    torch.testing.assert_close(out.pert_align, curvature.pert_align(g, g_adv))


def test_pert_align_of_pgd_compares_the_first_two_attack_gradients() -> None:
    out, _ = run(create("pgd-2", LINF), noise=ETA)
    start = (X + ETA).clamp(0, 1)
    g = gradient_at(MODEL, start, Y)
    second = (X + (start - X + 0.5 * EPS * g.sign()).clamp(-EPS, EPS)).clamp(0, 1)
    final, _ = run(create("pgd-2", LINF, align="final"), noise=ETA)
    for one, at in ((out, second), (final, final.x_adv)):
        expected = curvature.pert_align(g, gradient_at(MODEL, at, Y))
        torch.testing.assert_close(one.pert_align, expected, rtol=0, atol=1e-9)


def test_benign_trains_the_weights_of_a_bare_loop() -> None:
    ours, bare = batchnorm(), batchnorm()
    method = create("benign", LINF)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (ours, bare)]
    for step in range(3):
        x, y = images(dtype=torch.float32, seed=step)
        x = x.contiguous(memory_format=torch.channels_last)  # the order a step chooses, and Dropout draws in
        for model, optimizer in zip((ours, bare), optimizers, strict=True):
            torch.manual_seed(step)
            optimizer.zero_grad()
            if model is ours:
                found = method.step(model, x, y).loss
            else:
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                assert torch.equal(found, loss.detach())
            optimizer.step()
    for one, other in zip(ours.state_dict().values(), bare.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def test_step_adds_to_gradients_and_never_zeroes_them() -> None:
    model, method = two_layer(), create("benign", LINF)
    for _ in range(2):
        method.step(model, X, Y)
    for twice, single in zip(model.parameters(), run(method)[1], strict=True):
        torch.testing.assert_close(twice.grad, 2 * single)
