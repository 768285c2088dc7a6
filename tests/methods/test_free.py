from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sora import curvature
from sora.errors import UserError
from sora.methods import create
from sora.methods.free import Free

from .toys import EPS, IMAGE, LINF, gradient_at, images, run, two_layer


def free(rows: int = 6, **hyper: object) -> Free:
    method = create("free", LINF, **hyper)
    assert isinstance(method, Free)
    method.double().setup(n_train=99, shape=IMAGE, batch_size=rows, epochs=2, steps_per_epoch=3)
    return method.double()


def delta_of(method: Free) -> Tensor:
    assert method.delta is not None
    return method.delta[:6]


def test_the_last_batch_of_an_epoch_may_have_one_image_more() -> None:
    model, (x, y) = two_layer(), images(7)
    out, _ = run(free(rows=6), model, x, y)
    assert out.loss.isfinite()


def test_first_replay_of_the_first_batch_trains_on_clean_images() -> None:
    model, (x, y) = two_layer(), images()
    out, gradients = run(free(), model, x, y)
    assert torch.equal(out.x_adv, x)
    _, clean = run(create("benign", LINF), model, x, y)
    for one, other in zip(gradients, clean, strict=True):
        assert torch.equal(one, other)


def test_with_one_replay_the_second_batch_starts_from_the_perturbation_of_the_first() -> None:
    model, method = two_layer(), free(replays=1)
    (x1, y1), (x2, y2) = images(seed=1), images(seed=2)
    run(method, model, x1, y1)
    step = EPS * gradient_at(model, x1, y1).sign()
    delta1 = (x1 + step).clamp(0, 1) - x1
    torch.testing.assert_close(delta_of(method), delta1, rtol=0, atol=1e-9)
    out, _ = run(method, model, x2, y2)
    torch.testing.assert_close(out.x_adv, (x2 + delta1).clamp(0, 1), rtol=0, atol=1e-9)


def test_delta_stays_in_the_ball_and_meaningful_for_its_image_after_every_update() -> None:
    model, method = two_layer(), free(replays=3)
    for seed in range(3):
        x, y = images(seed=seed)
        for _ in range(method.updates):
            run(method, model, x, y)
            assert delta_of(method).abs().max() <= EPS + 1e-6
            assert delta_of(method).abs().max() > 0.5 * EPS
            inside = x + delta_of(method)
            assert ((inside >= -1e-9) & (inside <= 1 + 1e-9)).all()


def test_rows_beyond_a_smaller_batch_stay_untouched() -> None:
    model, method = two_layer(), free(rows=6, replays=1)
    x, y = images()
    run(method, model, x, y)
    before = delta_of(method).clone()
    run(method, model, x[:4].flip(0), y[:4])
    assert torch.equal(delta_of(method)[4:], before[4:])
    assert not torch.equal(delta_of(method)[:4], before[:4])


def test_delta_is_not_reset_by_an_epoch() -> None:
    model, method = two_layer(), free(replays=1)
    x, y = images()
    run(method, model, x, y)
    before = delta_of(method).clone()
    method.begin_epoch(2)
    assert torch.equal(delta_of(method), before)


def test_pert_align_compares_consecutive_replays_of_one_batch() -> None:
    model, method = two_layer(), free(replays=2)
    (x, y), (x2, y2) = images(), images(seed=2)
    first, _ = run(method, model, x, y)
    second, _ = run(method, model, x, y)
    assert first.pert_align.isnan()
    expected = curvature.pert_align(gradient_at(model, x, y), gradient_at(model, second.x_adv, y))
    torch.testing.assert_close(second.pert_align, expected)
    third, _ = run(method, model, x2, y2)
    assert third.pert_align.isnan()


def test_updates_is_the_number_of_replays() -> None:
    assert create("free", LINF).updates == 8
    assert create("free", LINF, replays=4).updates == 4
    assert create("fgsm", LINF).updates == 1


def test_a_method_that_is_not_set_up_or_too_small_gets_one_clear_line() -> None:
    model, (x, y) = two_layer(), images()
    with pytest.raises(UserError, match=r"free holds 0 rows, the batch has 6; call setup"):
        create("free", LINF).step(model, x, y)
    with pytest.raises(UserError, match=r"free holds 5 rows, the batch has 6"):
        free(rows=4).step(model, x, y)


def test_bad_hyper_parameters_are_refused() -> None:
    with pytest.raises(UserError, match=r"free\.replays is 0; allowed: 1 or more"):
        create("free", LINF, replays=0)
