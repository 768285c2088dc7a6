import math

import pytest
import torch
from torch import Tensor

from sora import curvature
from sora.methods import Crafted, Inputs, Learned, Method, create
from sora.threat import L2, Linf

from .toys import BALLS, EPS, ETA, LINF, MODEL, X, Y, gradient_at, passes, run

CAP = 16 / 255


def update(method: Method, g: Tensor, g_adv: Tensor) -> dict[str, Tensor]:
    """Update the state with the two gradients of a batch."""
    inputs = Inputs(torch.zeros_like(g), torch.zeros(len(g), dtype=torch.long), ())
    return method.update_state(inputs, Crafted(inputs.x, g), Learned(g.sum(), g, g_adv))


def feed(method: Method, c: float, norm_of_g: float = 1.0) -> dict[str, Tensor]:
    """Update the state with two gradients of linearity coefficient c."""
    g = torch.full((2, 4), norm_of_g)
    return update(method, g, c * g)


def at(v: float, **hyper: object) -> Method:
    return create("sora", LINF, v0=v, **hyper)


@pytest.mark.parametrize(
    ("v", "step"), [(0.99, CAP), (0.5, 0.04), (0.0, 0.02), (-1.0, 0.01), (1.0, CAP), (1.3, CAP)]
)
def test_step_size_of_a_coefficient(v: float, step: float) -> None:
    assert at(v).alpha_star.item() == pytest.approx(step, rel=1e-6)


@pytest.mark.parametrize(
    ("v", "hyper", "coefficients", "new", "step"),
    [
        (0.99, {}, [0.5], 0.9655, CAP),  # a batch has a weight of one twentieth
        (0.99, {}, [0.0], 0.9405, CAP),
        (0.99, {}, [0.0] * 8, 0.99 * 0.95**8, CAP),  # the first v for which the step is below the cap
        (0.99, {}, [0.0] * 9, 0.99 * 0.95**9, 0.02 / (1 - 0.99 * 0.95**8)),
        (0.5, {}, [0.0], 0.475, 0.04),  # alpha* comes before v, as in Algorithm 1
        (0.5, {"update_first": True}, [0.0], 0.475, 0.02 / 0.525),
        (0.5, {}, [1e6], 0.525, 0.04),  # clamped by default
        (0.5, {"coef_clamp": None}, [1e6, 0.0], 0.95 * (0.475 + 5e4), CAP),
        (0.5, {"adaptive": False}, [-1.0] * 3, 0.5 * 0.95**3 - (1 - 0.95**3), CAP),
        (0.5, {"coef_clamp": None}, [math.nan], 0.5, 0.04),  # what is not finite is skipped
        (0.5, {"coef_clamp": None}, [math.inf], 0.5, 0.04),
    ],
)
def test_state_after_batches(v, hyper, coefficients, new, step) -> None:
    method = at(v, **hyper)
    extras = [feed(method, c) for c in coefficients][-1]
    assert method.v.item() == pytest.approx(new, rel=1e-6)
    assert method.alpha_star.item() == pytest.approx(step, rel=1e-6)
    assert extras["skipped"].item() == float(not math.isfinite(coefficients[0]))
    assert extras["clamped"].item() == float(coefficients == [1e6])


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_batch_with_an_infinite_gradient_is_skipped_and_counted(value: float) -> None:
    good, bad = torch.ones(2, 4), torch.ones(2, 4)
    bad[0, 0] = value
    for g, g_adv in ((good, bad), (bad, good)):
        if g is good or math.isnan(value):
            numbers = update(at(0.5), g, g_adv)
            assert numbers["v"] == 0.5
            assert numbers["skipped"] == 1
    assert curvature.linearity(good, bad).isnan()


def test_all_zero_gradients_leave_v_and_alpha_star() -> None:
    method = at(0.3)
    before = method.alpha_star.item()
    feed(method, 0.0, norm_of_g=0.0)
    assert method.v.item() == pytest.approx(0.3)
    assert method.alpha_star.item() == before


def test_steps_are_drawn_one_per_pixel_and_channel() -> None:
    share = torch.rand(X.shape, dtype=X.dtype)
    out, _ = run(create("sora", Linf(EPS, box=None)), noise=(ETA, share))
    g = gradient_at(MODEL, X + ETA, Y)
    torch.testing.assert_close(out.x_adv, X + ETA + share * 2 * EPS * g.sign(), rtol=0, atol=1e-8)


def test_noise_is_clamped_before_the_gradient_only_with_box_noise() -> None:
    for flag, start in ((False, X + ETA), (True, (X + ETA).clamp(0, 1))):
        _, seen = passes(create("sora", LINF, sample=False, box_noise=flag), noise=ETA)
        assert torch.equal(seen[0][1], start)


def test_without_sampling_alpha_star_is_everywhere_and_without_room_the_noise_is_boxed() -> None:
    out, _ = run(create("sora", Linf(EPS, box=None), sample=False, v0=0.0), noise=ETA)
    torch.testing.assert_close((out.x_adv - X - ETA).abs(), torch.full_like(X, 0.02), rtol=0, atol=1e-8)
    none = create("sora", BALLS["l2"], sample=False)
    none.alpha_star.zero_()
    for method in (create("sora", LINF, alpha_max=0, sample=False), none):
        assert torch.equal(run(method, noise=ETA)[0].x_adv, (X + ETA).clamp(0, 1))
    assert torch.equal(run(create("sora", Linf(0)))[0].x_adv, X)


def test_v_averages_the_linearity_of_steps_and_eps_warm_up_makes_them_shorter() -> None:
    method = at(0.0)
    out, _ = run(method)
    assert method.v.item() == pytest.approx(0.05 * out.linearity.clamp(-1, 1).item(), rel=1e-5)
    method = create("sora", LINF)
    method.threat = LINF.scaled(0.25)
    assert run(method)[0].step_size.item() == pytest.approx(CAP / 4, rel=1e-6)


def test_l2_noise_lies_on_the_sphere() -> None:
    x = torch.zeros(20, 3, 5, 5)
    eta, share = create("sora", BALLS["l2"]).draw(x)
    torch.testing.assert_close(eta.flatten(1).norm(dim=1), torch.full((20,), 0.5), rtol=0, atol=1e-5)
    assert share.shape == x.shape


def test_l2_coefficient_of_the_reference_gradients() -> None:
    method = create("sora", BALLS["l2"], v0=0.0)
    update(method, torch.tensor([[3.0, -1.0]]), torch.tensor([[2.4, -0.6]]))
    assert method.v.item() == pytest.approx(0.05 * 0.78, rel=1e-5)


def test_l2_steps_along_the_unit_gradient_or_the_raw_one_of_each_example() -> None:
    ball, g = L2(0.5, box=None), gradient_at(MODEL, X + ETA, Y)
    length = g.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    unit, _ = run(create("sora", ball, sample=False), noise=ETA)
    torch.testing.assert_close(unit.x_adv, X + ETA + 1.0 * g / length, rtol=0, atol=1e-6)
    raw, _ = run(create("sora", ball, sample=False, direction="raw"), noise=ETA)
    torch.testing.assert_close(raw.x_adv, X + ETA + 1.0 * g * len(X), rtol=0, atol=1e-6)
