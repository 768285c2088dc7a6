from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sora import curvature
from sora.errors import UserError
from sora.methods import Crafted, Inputs, Learned, Method, create
from sora.threat import L2, Linf

from .toys import BALLS, EPS, LINF, assert_same, gradient_at, images, run, two_layer, uniform

CAP = 16 / 255


def feed(method: Method, c: float, norm_of_g: float = 1.0) -> dict[str, Tensor]:
    """Update the state with two gradients of linearity coefficient c."""
    g = torch.full((2, 4), norm_of_g)
    x, y, zero = torch.zeros(2, 4), torch.zeros(2, dtype=torch.long), torch.zeros(())
    return method.update_state(Inputs(x, y, ()), Crafted(x, g), Learned(zero, torch.zeros(2, 2), c * g))


def at(v: float, **hyper: object) -> Method:
    return create("sora", LINF, v0=v, **hyper)


@pytest.mark.parametrize(
    ("v", "step"), [(0.99, CAP), (0.5, 0.04), (0.0, 0.02), (-1.0, 0.01), (1.0, CAP), (1.3, CAP)]
)
def test_step_size_of_a_coefficient(v: float, step: float) -> None:
    assert at(v).alpha_star.item() == pytest.approx(step, rel=1e-6)


def test_moving_coefficient_takes_a_twentieth_of_the_batch() -> None:
    method = at(0.99)
    feed(method, 0.5)
    assert method.v.item() == pytest.approx(0.9655, rel=1e-6)


def test_two_batches_of_coefficient_zero() -> None:
    method = at(0.99)
    feed(method, 0.0)
    assert method.alpha_star.item() == pytest.approx(CAP, rel=1e-6)
    assert method.v.item() == pytest.approx(0.9405, rel=1e-6)
    feed(method, 0.0)
    assert method.v.item() == pytest.approx(0.9405 * 0.95, rel=1e-6)


def test_constant_coefficient_zero_leaves_the_cap_at_the_eighth_update() -> None:
    method, threshold = at(0.99), 1 - 0.02 / CAP
    below = []
    for _ in range(8):
        feed(method, 0.0)
        below.append(method.v.item() < threshold)
    assert below == [False] * 7 + [True]


def test_alpha_star_comes_before_v_as_in_algorithm_1() -> None:
    method = at(0.5)
    feed(method, 0.0)
    assert method.alpha_star.item() == pytest.approx(0.04, rel=1e-6)
    assert method.v.item() == pytest.approx(0.475, rel=1e-6)


def test_update_first_computes_alpha_star_from_the_new_v() -> None:
    method = at(0.5, update_first=True)
    feed(method, 0.0)
    assert method.alpha_star.item() == pytest.approx(0.02 / 0.525, rel=1e-6)
    assert method.alpha_star.item() == pytest.approx(0.038095, abs=1e-6)


def test_coefficient_is_clamped_by_default() -> None:
    clamped, free = at(0.5), at(0.5, coef_clamp=None)
    extras = feed(clamped, 1e6)
    feed(free, 1e6)
    assert clamped.v.item() == pytest.approx(0.525, rel=1e-6)
    assert extras["clamped"].item() == 1.0
    assert free.v.item() > 1e4
    feed(free, 0.0)
    assert free.alpha_star.item() == pytest.approx(CAP, rel=1e-6)


@pytest.mark.parametrize("c", [math.nan, math.inf])
def test_a_coefficient_that_is_not_finite_is_skipped_and_counted(c: float) -> None:
    method = at(0.5, coef_clamp=None)
    extras = feed(method, c)
    assert method.v.item() == 0.5
    assert method.alpha_star.item() == pytest.approx(0.04, rel=1e-6)
    assert extras["skipped"].item() == 1.0


def test_a_nan_in_one_start_gradient_skips_the_update() -> None:
    method = at(0.5)
    g = torch.ones(2, 4)
    g[0, 0] = math.nan
    x, y, zero = torch.zeros(2, 4), torch.zeros(2, dtype=torch.long), torch.zeros(())
    method.update_state(Inputs(x, y, ()), Crafted(x, g), Learned(zero, zero, torch.ones(2, 4)))
    assert method.v.item() == 0.5


def test_all_zero_gradients_leave_v_and_alpha_star() -> None:
    method = at(0.3)
    before = method.alpha_star.item()
    feed(method, 0.0, norm_of_g=0.0)
    assert method.v.item() == pytest.approx(0.3)
    assert method.alpha_star.item() == before


def test_steps_are_drawn_one_per_pixel_and_channel() -> None:
    model, (x, y) = two_layer(), images()
    method = create("sora", Linf(EPS, box=None))
    eta, share = uniform(x), torch.rand(x.shape, dtype=x.dtype)
    out, _ = run(method, model, x, y, noise=(eta, share))
    g = gradient_at(model, x + eta, y)
    torch.testing.assert_close(out.x_adv, x + eta + share * 2 * EPS * g.sign(), rtol=0, atol=1e-8)


def test_noise_is_clamped_before_the_gradient_only_with_box_noise() -> None:
    model, (x, y) = two_layer(), images()
    eta = uniform(x)
    plain, clamped = (create("sora", LINF, sample=False, box_noise=flag) for flag in (False, True))
    seen: list[Tensor] = []
    model.register_forward_pre_hook(lambda module, args: seen.append(args[0].detach().clone()))
    plain.step(model, x, y, noise=eta)
    clamped.step(model, x, y, noise=eta)
    assert torch.equal(seen[0], x + eta)
    assert torch.equal(seen[2], (x + eta).clamp(0, 1))


def test_switches_turn_it_into_fgsm_rs() -> None:
    model, (x, y) = two_layer(), images()
    eta = uniform(x)
    switches = {"sample": False, "adaptive": False, "alpha_max": 1.25, "clip_ball": True, "box_noise": True}
    one = run(create("sora", LINF, **switches), model, x, y, noise=eta)
    assert_same(one, run(create("fgsm-rs", LINF), model, x, y, noise=eta))


def test_switches_turn_it_into_n_fgsm() -> None:
    model, (x, y) = two_layer(), images()
    eta = 2 * uniform(x)
    switches = {"sample": False, "adaptive": False, "alpha_max": 1.0, "k": 2, "box_noise": True}
    one = run(create("sora", LINF, **switches), model, x, y, noise=eta)
    assert_same(one, run(create("n-fgsm", LINF), model, x, y, noise=eta))


def test_without_adaptation_the_step_stays_the_largest() -> None:
    method = at(0.5, adaptive=False)
    for _ in range(3):
        feed(method, -1.0)
    assert method.alpha_star.item() == pytest.approx(CAP, rel=1e-6)


def test_sampling_switched_off_uses_alpha_star_everywhere() -> None:
    model, (x, y) = two_layer(), images()
    method = create("sora", Linf(EPS, box=None), sample=False, v0=0.0)
    eta = uniform(x)
    out, _ = run(method, model, x, y, noise=eta)
    torch.testing.assert_close((out.x_adv - x - eta).abs(), torch.full_like(x, 0.02), rtol=0, atol=1e-8)


def test_ball_clip_keeps_the_perturbation_inside_eps() -> None:
    model, (x, y) = two_layer(), images()
    free, _ = run(create("sora", LINF, sample=False), model, x, y)
    clipped, _ = run(create("sora", LINF, sample=False, clip_ball=True), model, x, y)
    assert (free.x_adv - x).abs().max() > 1.01 * EPS
    assert (clipped.x_adv - x).abs().max() <= EPS + 1e-6


def test_no_room_for_a_step_trains_on_the_boxed_noise() -> None:
    model, (x, y) = two_layer(), images()
    eta = uniform(x)
    out, _ = run(create("sora", LINF, alpha_max=0, sample=False), model, x, y, noise=eta)
    assert torch.equal(out.x_adv, (x + eta).clamp(0, 1))
    still, _ = run(create("sora", Linf(0)), model, x, y)
    assert torch.equal(still.x_adv, x)


def test_linearity_of_the_step_is_what_v_averages() -> None:
    model, (x, y) = two_layer(), images()
    method = create("sora", LINF, v0=0.0)
    out, _ = run(method, model, x, y)
    assert method.v.item() == pytest.approx(0.05 * out.linearity.clamp(-1, 1).item(), rel=1e-5)


def test_eps_warm_up_never_takes_a_step_of_the_larger_radius() -> None:
    model, (x, y) = two_layer(), images()
    method = create("sora", LINF)
    method.threat = LINF.scaled(0.25)
    out, _ = run(method, model, x, y)
    assert out.step_size.item() == pytest.approx(CAP / 4, rel=1e-6)


# l2.


def test_l2_noise_lies_on_the_sphere() -> None:
    x = torch.zeros(20, 3, 5, 5)
    eta, share = create("sora", BALLS["l2"]).draw(x)
    torch.testing.assert_close(eta.flatten(1).norm(dim=1), torch.full((20,), 0.5), rtol=0, atol=1e-5)
    assert share.shape == x.shape


def test_l2_coefficient_of_the_reference_gradients() -> None:
    method = create("sora", BALLS["l2"], v0=0.0)
    x, y, zero = torch.zeros(1, 2), torch.zeros(1, dtype=torch.long), torch.zeros(())
    crafted = Crafted(x, torch.tensor([[3.0, -1.0]]))
    method.update_state(Inputs(x, y, ()), crafted, Learned(zero, zero, torch.tensor([[2.4, -0.6]])))
    assert method.v.item() == pytest.approx(0.05 * 0.78, rel=1e-5)


def test_l2_with_alpha_star_zero_trains_on_the_boxed_noise() -> None:
    model, (x, y) = two_layer(), images()
    method = create("sora", BALLS["l2"], sample=False)
    method.alpha_star.zero_()
    eta = uniform(x)
    out, _ = run(method, model, x, y, noise=eta)
    assert torch.equal(out.x_adv, (x + eta).clamp(0, 1))


def test_l2_steps_along_the_unit_gradient_or_the_raw_one_of_each_example() -> None:
    model, (x, y) = two_layer(), images()
    ball, eta = L2(0.5, box=None), uniform(x)
    g = gradient_at(model, x + eta, y)
    length = g.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    unit, _ = run(create("sora", ball, sample=False), model, x, y, noise=eta)
    torch.testing.assert_close(unit.x_adv, x + eta + 1.0 * g / length, rtol=0, atol=1e-6)
    raw, _ = run(create("sora", ball, sample=False, direction="raw"), model, x, y, noise=eta)
    torch.testing.assert_close(raw.x_adv, x + eta + 1.0 * g * len(x), rtol=0, atol=1e-6)


def test_bad_hyper_parameters_are_refused_with_the_allowed_range() -> None:
    with pytest.raises(UserError, match=r"sora\.beta is 1\.5; allowed: 0 to 1"):
        create("sora", LINF, beta=1.5)
    with pytest.raises(UserError, match=r"sora\.alpha0 is 0\.0; allowed: more than 0"):
        create("sora", LINF, alpha0=0.0)
    with pytest.raises(UserError, match=r"sora\.direction is 'up'; allowed: unit, raw"):
        create("sora", LINF, direction="up")
    with pytest.raises(UserError, match=r"unknown option 'sora\.alpha'; did you mean 'sora\.alpha0'"):
        create("sora", LINF, alpha=1)
    with pytest.raises(UserError, match=r"sora\.coef_clamp is \(1\.0,\); expected two limits"):
        create("sora", LINF, coef_clamp=(1,))


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_batch_with_an_infinite_gradient_is_skipped_and_counted(value: float) -> None:
    method = at(0.5)
    g = torch.ones(2, 4)
    g_adv = g.clone()
    g_adv[0, 0] = value
    x, y, zero = torch.zeros(2, 4), torch.zeros(2, dtype=torch.long), torch.zeros(())
    numbers = method.update_state(Inputs(x, y, ()), Crafted(x, g), Learned(zero, torch.zeros(2, 2), g_adv))
    assert numbers["v"] == 0.5
    assert numbers["skipped"] == 1
    assert curvature.linearity(g, g_adv).isnan()
