from __future__ import annotations

import torch

from sora.methods import create

from .toys import EPS, LINF, assert_same, images, run, two_layer


def test_k_zero_equals_fgsm() -> None:
    model, (x, y) = two_layer(), images()
    assert_same(run(create("n-fgsm", LINF, k=0), model, x, y), run(create("fgsm", LINF), model, x, y))


def test_perturbation_reaches_beyond_eps_but_not_beyond_three() -> None:
    model, (x, y) = two_layer(), images()
    out, _ = run(create("n-fgsm", LINF), model, x, y)
    size = (out.x_adv - x).abs().max()
    assert EPS < size <= 3 * EPS + 1e-6


def test_noise_has_k_times_the_radius() -> None:
    x = torch.zeros(50, 2, 4, 4)
    (eta,) = create("n-fgsm", LINF, k=4).draw(x)
    assert 3.9 * EPS < eta.abs().max() <= 4 * EPS
