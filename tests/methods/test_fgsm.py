from __future__ import annotations

import torch

from sora.methods import create

from .toys import BALLS, EPS, LINF, gradient_at, images, line, run, two_layer


def test_linear_loss_moves_every_pixel_by_eps_up_to_the_box() -> None:
    model = line(torch.linspace(0.1, 1.0, 32, dtype=torch.float64))
    x = torch.full((2, 2, 4, 4), 0.5, dtype=torch.float64)
    x[1] = 0.99
    out, _ = run(create("fgsm", LINF), model, x, torch.tensor([1, 1]))
    torch.testing.assert_close(out.x_adv[0], x[0] + EPS, rtol=0, atol=1e-12)
    assert (out.x_adv[1] == 1.0).all()


def test_a_pixel_without_gradient_stays() -> None:
    weights = torch.linspace(0.1, 1.0, 32, dtype=torch.float64)
    weights[5] = 0.0
    x = torch.full((1, 2, 4, 4), 0.5, dtype=torch.float64)
    out, _ = run(create("fgsm", LINF), line(weights), x, torch.tensor([1]))
    moved = (out.x_adv != x).flatten()
    assert not moved[5]
    assert moved.sum() == 31


def test_l2_step_has_length_eps_along_the_gradient() -> None:
    model, (x, y) = two_layer(), images()
    x = 0.4 + 0.2 * x  # far from the box, so that nothing is cut off
    threat = BALLS["l2"].scaled(0.1)
    out, _ = run(create("fgsm", threat), model, x, y)
    g = gradient_at(model, x, y).flatten(1)
    expected = x.flatten(1) + threat.eps * g / g.norm(dim=1, keepdim=True)
    torch.testing.assert_close(out.x_adv.flatten(1), expected, rtol=0, atol=1e-9)


def test_step_scales_with_eps_through_alpha() -> None:
    model, (x, y) = two_layer(), images()
    half, _ = run(create("fgsm", LINF, alpha=0.5), model, x, y)
    small, _ = run(create("fgsm", LINF.scaled(0.5)), model, x, y)
    assert torch.equal(half.x_adv, small.x_adv)


def test_a_step_longer_than_eps_is_clipped_to_the_ball() -> None:
    model, (x, y) = two_layer(), images()
    for norm, threat in BALLS.items():
        long, plain = (run(create("fgsm", threat, alpha=alpha), model, x, y)[0] for alpha in (2.0, 1.0))
        assert (threat.size(long.x_adv - x) <= threat.eps + 1e-9).all(), norm
        torch.testing.assert_close(long.x_adv, plain.x_adv, rtol=0, atol=1e-9)
