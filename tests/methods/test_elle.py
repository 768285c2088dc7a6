from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sora.errors import UserError
from sora.methods import Crafted, Inputs, Learned, create
from sora.methods.elle import ELLE, nonlinearity

from .toys import EPS, LINF, assert_same, gradient_at, images, run, two_layer, uniform


def noise_for(x: Tensor) -> tuple[Tensor, ...]:
    a = torch.rand(len(x), generator=torch.Generator().manual_seed(3), dtype=x.dtype)
    return uniform(x, seed=1), uniform(x, seed=2), a


def test_lambda_zero_equals_fgsm() -> None:
    model, (x, y) = two_layer(), images()
    one = run(create("elle", LINF, lam=0), model, x, y)
    assert_same(one, run(create("fgsm", LINF), model, x, y))


def test_one_dimensional_parabola() -> None:
    def loss(x: float) -> Tensor:
        return torch.tensor([2.0 * x * x / 2])

    for xa in (0.0, -3.0, 7.5):
        value = nonlinearity(loss(xa), loss(xa + 1), loss(xa + 0.5), torch.tensor([0.5]))
        assert value.item() == pytest.approx(0.0625)


def test_general_quadratic() -> None:
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(5, 5, dtype=torch.float64, generator=generator)
    h, b = h + h.T, torch.randn(5, dtype=torch.float64, generator=generator)
    xa, xb = torch.randn(2, 8, 5, dtype=torch.float64, generator=generator)
    a = torch.rand(8, dtype=torch.float64, generator=generator)

    def loss(x: Tensor) -> Tensor:
        return x @ b + 0.5 * ((x @ h) * x).sum(1)

    xc = (1 - a)[:, None] * xa + a[:, None] * xb
    residual = -0.5 * a * (1 - a) * (((xb - xa) @ h) * (xb - xa)).sum(1)
    value = nonlinearity(loss(xa), loss(xb), loss(xc), a)
    torch.testing.assert_close(value, residual.square().mean())


def test_linear_loss_has_none() -> None:
    la, lb, a = torch.rand(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert nonlinearity(la, lb, (1 - a) * la + a * lb, a).item() == pytest.approx(0.0, abs=1e-30)


def test_loss_is_cross_entropy_plus_lambda_times_e() -> None:
    model, (x, y) = two_layer(), images()
    noise = noise_for(x)
    out, _ = run(create("elle", LINF), model, x, y, noise=noise)
    xa, xb, a = x + noise[0], x + noise[1], noise[2]
    xc = (1 - a).view(-1, 1, 1, 1) * xa + a.view(-1, 1, 1, 1) * xb
    losses = [torch.nn.functional.cross_entropy(model(z), y, reduction="none") for z in (xa, xb, xc)]
    expected = nonlinearity(*losses, a).detach()
    assert expected > 0
    torch.testing.assert_close(out.extras["elle"], expected)
    plain = torch.nn.functional.cross_entropy(model(out.x_adv), y).detach()
    torch.testing.assert_close(out.loss, plain + 1000 * expected)


def test_penalty_is_differentiated_through_all_three_points() -> None:
    model, (x, y) = two_layer(), images()
    noise, h = noise_for(x), 1e-6
    method = create("elle", LINF, alpha=0, lam=1e6)
    _, gradients = run(method, model, x, y, noise=noise)
    values = []
    for shift in (h, -2 * h):
        with torch.no_grad():
            model[1].weight[0, 0] += shift
        values.append(run(method, model, x, y, noise=noise)[0].loss.item())
    assert gradients[0][0, 0].item() == pytest.approx((values[0] - values[1]) / (2 * h), rel=1e-4)


def test_random_start_steps_from_the_noise_and_clips() -> None:
    model, (x, y) = two_layer(), images()
    eta = uniform(x, seed=9)
    out, _ = run(create("elle", LINF, start="random"), model, x, y, noise=(*noise_for(x), eta))
    g = gradient_at(model, x + eta, y)
    expected = (x + (eta + EPS * g.sign()).clamp(-EPS, EPS)).clamp(0, 1)
    torch.testing.assert_close(out.x_adv, expected, rtol=0, atol=1e-9)


# ELLE-A.


def feed(method: ELLE, value: float) -> float:
    """Update the state with one value of E; return the weight for the next batch."""
    x, zero = torch.zeros(2, 2), torch.zeros(())
    crafted = Crafted(x, extras={"elle": torch.tensor(value, dtype=torch.float64)})
    method.update_state(Inputs(x, torch.zeros(2, dtype=torch.long), ()), crafted, Learned(zero, x, None))
    return method.lam.item()


def adaptive() -> ELLE:
    method = create("elle", LINF, adaptive=True)
    assert isinstance(method, ELLE)
    return method


def test_adaptive_weight_is_zero_until_the_first_jump_then_decays() -> None:
    method = adaptive()
    assert [feed(method, value) for value in (1.0, 1.1, 0.9, 1.0)] == [0.0] * 4
    assert feed(method, 5.0) == 4000.0
    assert feed(method, 1.0) == pytest.approx(3960.0)


def test_adaptive_weight_needs_three_earlier_values() -> None:
    method = adaptive()
    assert [feed(method, value) for value in (1.0, 9.0, 99.0)] == [0.0] * 3
    assert feed(method, 999.0) == 4000.0


def test_constant_values_never_jump() -> None:
    method = adaptive()
    assert {feed(method, 0.1) for _ in range(50)} == {0.0}


def test_jumps_are_judged_by_the_population_deviation_of_all_earlier_values() -> None:
    method = adaptive()
    values = [1.0, 2.0, 3.0, 2.5, 1.5]
    for value in values:
        feed(method, value)
    earlier = torch.tensor(values)
    assert method.mean.item() == pytest.approx(earlier.mean().item())
    deviation = earlier.std(correction=0).item()
    assert (method.spread / math.sqrt(5)).item() == pytest.approx(deviation, rel=1e-5)
    assert feed(method, earlier.mean().item() + 1.99 * deviation) == 0.0
    again = adaptive()
    for value in values:
        feed(again, value)
    assert feed(again, earlier.mean().item() + 2.01 * deviation) == 4000.0


def test_a_value_of_1e20_leaves_the_statistics_finite() -> None:
    method = adaptive()
    for value in (1.0, 1e20, 1.0, 1e20):
        feed(method, value)
    assert method.mean.isfinite()
    assert (method.spread / 2).item() == pytest.approx(0.5e20, rel=1e-5)
    assert feed(method, 4e20) == 4000.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_value_that_is_not_finite_is_skipped_and_counted(bad: float) -> None:
    method = adaptive()
    for value in (1.0, 1.1, 0.9):
        feed(method, value)
    before = {name: value.clone() for name, value in method.state_dict().items()}
    feed(method, bad)
    assert method.skipped.item() == 1
    for name in ("lam", "count", "mean", "spread"):
        assert torch.equal(method.state_dict()[name], before[name])


def test_adaptive_weight_is_the_one_in_the_loss() -> None:
    model, (x, y) = two_layer(), images()
    method, noise = adaptive(), noise_for(x)
    first, _ = run(method, model, x, y, noise=noise)
    plain = torch.nn.functional.cross_entropy(model(first.x_adv), y).detach()
    torch.testing.assert_close(first.loss, plain)
    method.lam.fill_(500.0)
    second, _ = run(method, model, x, y, noise=noise)
    torch.testing.assert_close(second.loss, plain + 500 * second.extras["elle"])


def test_plain_elle_has_no_state() -> None:
    assert not create("elle", LINF).state_dict()


def test_bad_hyper_parameters_are_refused() -> None:
    with pytest.raises(UserError, match=r"elle\.lam is -1\.0; allowed: 0 or more"):
        create("elle", LINF, lam=-1)
    with pytest.raises(UserError, match=r"elle\.start is 'noise'; allowed: zero, random"):
        create("elle", LINF, start="noise")
