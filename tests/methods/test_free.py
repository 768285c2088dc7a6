from typing import Any

import torch

from sora import curvature
from sora.methods import create

from .toys import EPS, LINF, MODEL, X, Y, gradient_at, images, prepared, run


def free(**options: object) -> Any:
    return prepared("free", **options).double()


def test_the_first_replay_trains_on_clean_images_and_later_ones_on_the_perturbation() -> None:
    out, gradients = run(free())
    assert torch.equal(out.x_adv, X)
    for one, other in zip(gradients, run(create("benign", LINF))[1], strict=True):
        assert torch.equal(one, other)
    method, (x2, y2) = free(replays=1), images(seed=2)
    run(method)
    delta = (X + EPS * gradient_at(MODEL, X, Y).sign()).clamp(0, 1) - X
    torch.testing.assert_close(method.delta[:6], delta, rtol=0, atol=1e-9)
    method.begin_epoch(2)  # an epoch resets nothing
    out, _ = run(method, MODEL, x2, y2)
    torch.testing.assert_close(out.x_adv, (x2 + delta).clamp(0, 1), rtol=0, atol=1e-9)


def test_delta_stays_in_the_ball_and_meaningful_for_its_image_after_every_update() -> None:
    method = free(replays=3)
    for seed in range(3):
        x, y = images(seed=seed)
        for _ in range(method.updates):
            run(method, MODEL, x, y)
            assert 0.5 * EPS < method.delta.abs().max() <= EPS + 1e-6
            inside = x + method.delta[:6]
            assert ((inside >= -1e-9) & (inside <= 1 + 1e-9)).all()


def test_pert_align_compares_consecutive_replays_of_one_batch() -> None:
    method = free(replays=2)
    first, second, third = run(method)[0], run(method)[0], run(method, MODEL, *images(seed=2))[0]
    assert first.pert_align.isnan()
    expected = curvature.pert_align(gradient_at(MODEL, X, Y), gradient_at(MODEL, second.x_adv, Y))
    torch.testing.assert_close(second.pert_align, expected)
    assert third.pert_align.isnan()
