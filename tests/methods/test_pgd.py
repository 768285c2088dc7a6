from __future__ import annotations

import copy

import pytest
import torch

from sora import curvature
from sora.methods import create

from .toys import EPS, LINF, assert_same, batchnorm, gradient_at, images, line, run, two_layer, uniform


def test_one_step_of_125_percent_equals_fgsm_rs() -> None:
    model, (x, y) = two_layer(), images()
    eta = uniform(x)
    one = run(create("pgd", LINF, steps=1, alpha=1.25), model, x, y, noise=eta)
    assert_same(one, run(create("fgsm-rs", LINF), model, x, y, noise=eta))


def test_pgd_10_on_a_linear_loss_ends_in_the_corner() -> None:
    weights = torch.linspace(-1.0, 1.1, 32, dtype=torch.float64)
    x, _ = images()
    out, _ = run(create("pgd-10", LINF), line(weights), x, torch.ones(len(x), dtype=torch.long))
    corner = (x + EPS * weights.sign().view(2, 4, 4)).clamp(0, 1)
    torch.testing.assert_close(out.x_adv, corner, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("name", "steps", "alpha"), [("pgd-2", 2, 0.5), ("pgd-10", 10, 0.25)])
def test_presets_are_the_papers(name: str, steps: int, alpha: float) -> None:
    method = create(name, LINF)
    assert (method.hyper.steps, method.hyper.alpha) == (steps, alpha)


def test_pert_align_compares_the_first_two_attack_gradients() -> None:
    model, (x, y) = two_layer(), images()
    eta = uniform(x)
    out, _ = run(create("pgd-2", LINF), model, x, y, noise=eta)
    start = (x + eta).clamp(0, 1)
    g = gradient_at(model, start, y)
    second = (x + (start - x + 0.5 * EPS * g.sign()).clamp(-EPS, EPS)).clamp(0, 1)
    expected = curvature.pert_align(g, gradient_at(model, second, y))
    torch.testing.assert_close(out.pert_align, expected, rtol=0, atol=1e-9)
    final, _ = run(create("pgd-2", LINF, align="final"), model, x, y, noise=eta)
    torch.testing.assert_close(
        final.pert_align, curvature.pert_align(g, gradient_at(model, final.x_adv, y)), rtol=0, atol=1e-9
    )


def test_attack_in_eval_mode_leaves_the_running_statistics_to_the_weight_update() -> None:
    model, (x, y) = batchnorm(), images(dtype=torch.float32)
    counts = {}
    for mode in ("train", "eval"):
        trained = copy.deepcopy(model)
        create("pgd-2", LINF, attack_mode=mode).step(trained, x, y)
        counts[mode] = int(trained[1].num_batches_tracked)
    assert counts == {"train": 3, "eval": 1}
