import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sora.methods import Crafted, Inputs, Learned, create
from sora.methods.elle import ELLE, nonlinearity

from .toys import EPS, ETA, LINF, MODEL, X, Y, assert_loss, gradient_at, run, uniform

NOISE = (ETA, uniform(X, seed=2), torch.rand(6, generator=torch.Generator().manual_seed(3)).double())


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


def test_loss_is_cross_entropy_plus_lambda_times_e_differentiated_through_all_three_points() -> None:
    method = create("elle", LINF)
    assert not method.state_dict()
    ran = run(method, noise=NOISE)
    xa, xb, a = X + NOISE[0], X + NOISE[1], NOISE[2]
    xc = (1 - a).view(-1, 1, 1, 1) * xa + a.view(-1, 1, 1, 1) * xb
    la, lb, lc = (F.cross_entropy(MODEL(z), Y, reduction="none") for z in (xa, xb, xc))
    e = (lc - (1 - a) * la - a * lb).square().mean()
    assert e > 0
    torch.testing.assert_close(ran[0].extras["elle"], e.detach())
    assert_loss(ran, F.cross_entropy(MODEL(ran[0].x_adv), Y) + 1000 * e)


def test_random_start_steps_from_the_noise_and_clips() -> None:
    eta = uniform(X, seed=9)
    out, _ = run(create("elle", LINF, start="random"), noise=(*NOISE, eta))
    g = gradient_at(MODEL, X + eta, Y)
    expected = (X + (eta + EPS * g.sign()).clamp(-EPS, EPS)).clamp(0, 1)
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


@pytest.mark.parametrize(
    ("values", "weights"),
    [  # 0 until the first jump above at least three earlier values, then decaying
        ((1.0, 1.1, 0.9, 1.0, 5.0, 1.0), (0.0, 0.0, 0.0, 0.0, 4000.0, 3960.0)),
        ((1.0, 9.0, 99.0, 999.0), (0.0, 0.0, 0.0, 4000.0)),
        ((0.1,) * 50, (0.0,) * 50),
    ],
)
def test_adaptive_weight_after_each_value(values: tuple[float, ...], weights: tuple[float, ...]) -> None:
    method = adaptive()
    assert [feed(method, value) for value in values] == pytest.approx(weights)


def test_jumps_are_judged_by_the_population_deviation_which_stays_finite() -> None:
    earlier = torch.tensor([1.0, 2.0, 3.0, 2.5, 1.5])
    mean, deviation = earlier.mean().item(), earlier.std(correction=0).item()
    for deviations, weight in ((1.99, 0.0), (2.01, 4000.0)):
        method = adaptive()
        for value in earlier.tolist():
            feed(method, value)
        assert method.mean.item() == pytest.approx(mean)
        assert (method.spread / math.sqrt(5)).item() == pytest.approx(deviation, rel=1e-5)
        assert feed(method, mean + deviations * deviation) == weight
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
    method = adaptive()
    first, _ = run(method, noise=NOISE)
    plain = F.cross_entropy(MODEL(first.x_adv), Y).detach()
    torch.testing.assert_close(first.loss, plain)
    method.lam.fill_(500.0)
    second, _ = run(method, noise=NOISE)
    torch.testing.assert_close(second.loss, plain + 500 * second.extras["elle"])
