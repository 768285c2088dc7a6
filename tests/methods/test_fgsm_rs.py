from __future__ import annotations

import torch

from sora.methods import create

from .toys import EPS, LINF, assert_same, gradient_at, images, run, two_layer, uniform


def test_alpha_zero_trains_on_the_boxed_noise() -> None:
    model, (x, y) = two_layer(), images()
    eta = uniform(x)
    out, _ = run(create("fgsm-rs", LINF, alpha=0), model, x, y, noise=eta)
    torch.testing.assert_close(out.x_adv, (x + eta).clamp(0, 1), rtol=0, atol=1e-12)


def test_equals_pgd_with_one_step_of_the_same_size() -> None:
    model, (x, y) = two_layer(), images()
    eta = uniform(x)
    one = run(create("fgsm-rs", LINF), model, x, y, noise=eta)
    other = run(create("pgd", LINF, steps=1, alpha=1.25), model, x, y, noise=eta)
    assert_same(one, other)


def test_the_step_starts_from_the_clamped_noise() -> None:
    model, (x, y) = two_layer(), images()
    eta = uniform(x)
    start = (x + eta).clamp(0, 1)
    delta = (start - x + 1.25 * EPS * gradient_at(model, start, y).sign()).clamp(-EPS, EPS)
    out, _ = run(create("fgsm-rs", LINF), model, x, y, noise=eta)
    torch.testing.assert_close(out.x_adv, (x + delta).clamp(0, 1), rtol=0, atol=1e-12)
    assert (start != x + eta).any()  # the box did cut some noise off
