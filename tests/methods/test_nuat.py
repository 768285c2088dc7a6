"""NuAT and GAT, by the same authors; GAT: the checks of more-methods.md, section 3.1."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sora.methods import create
from sora.methods.nuat import nuclear_norm

from .toys import EPS, LINF, MODEL, X, Y, assert_loss, prepared, run

SIGNS = (torch.rand(X.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) - 0.5).sign()
each_name = pytest.mark.parametrize("name", ["nuat", "gat"])


def attacks(name: str, **options: object) -> list[Tensor]:
    """The adversarial inputs of three batches of an epoch and of the first of the next one."""
    method = prepared(name, **options)
    found = [run(method, noise=SIGNS * EPS / 2)[0].x_adv for _ in range(3)]
    method.begin_epoch(2)
    return [*found, run(method, noise=SIGNS * EPS / 2)[0].x_adv]


@each_name
def test_every_other_attack_leaves_the_term_out_from_an_epochs_first(name: str) -> None:
    without, full, alternating = (
        attacks(name, lam=lam, alternate=alternate)
        for lam, alternate in ((0.0, False), (1000.0, False), (1000.0, True))
    )
    for batch in range(4):
        assert not torch.equal(without[batch], full[batch])
        assert torch.equal(alternating[batch], (full if batch == 1 else without)[batch])


@each_name
def test_the_noise_is_signs_of_half_eps_and_nuats_may_be_uniform(name: str) -> None:
    (noise,) = prepared(name).draw(torch.zeros(4, 2, 4, 4))
    torch.testing.assert_close(noise.abs(), torch.full_like(noise, EPS / 2))
    assert 0.3 < (noise > 0).float().mean() < 0.7
    (noise,) = create("nuat", LINF, noise="uniform").draw(torch.zeros(40, 2, 4, 4))
    assert 0.9 * EPS < noise.abs().max() <= EPS
    assert noise.abs().min() < 0.1 * EPS


def test_nuats_attack_and_loss_are_cross_entropy_plus_nuclear_norm() -> None:
    start = (X + SIGNS * EPS / 2).clamp(0, 1).requires_grad_()
    objective = F.cross_entropy(MODEL(start), Y)
    objective = objective + 4.0 / len(X) * torch.linalg.svdvals(MODEL(start) - MODEL(X).detach()).sum()
    (g,) = torch.autograd.grad(objective, start)
    moved = ((start + EPS * g.sign()).clamp(0, 1) - X).clamp(-EPS, EPS)
    out, _ = run(create("nuat", LINF), noise=SIGNS * EPS / 2)
    torch.testing.assert_close(out.x_adv, (X + moved).clamp(0, 1), rtol=0, atol=1e-9)
    ran = run(create("nuat", LINF, lam=2.0))
    clean, adversarial = MODEL(X), MODEL(ran[0].x_adv)
    change = torch.linalg.svdvals(adversarial - clean).sum()
    assert_loss(ran, F.cross_entropy(clean, Y) + 2.0 / 6 * change)


def test_nuats_ramp_rises_after_each_of_the_first_epochs_and_is_constant_for_the_last_ten() -> None:
    method, constant = (prepared("nuat", epochs=100, lam=4.5, ramp=ramp) for ramp in (True, False))
    values = []
    for epoch in range(1, 101):
        method.begin_epoch(epoch)
        constant.begin_epoch(epoch)
        values.append(method.lam.item())
        assert constant.lam.item() == 4.5
    assert values[0] == 0.0
    assert values[1] == pytest.approx(4.5 / 90)
    assert values[45] == pytest.approx(2.25)
    assert values[89] < 4.5
    assert values[90:] == [4.5] * 10


def test_nuclear_norm_is_right_and_survives_nan_zero_and_half_precision() -> None:
    assert nuclear_norm(torch.diag(torch.tensor([3.0, 4.0]))).item() == pytest.approx(7.0)
    bad = torch.tensor([[1.0, math.nan], [0.0, 1.0]], requires_grad=True)
    assert nuclear_norm(bad).isnan()
    zero = torch.zeros(3, 2, requires_grad=True)
    nuclear_norm(zero).backward()
    assert zero.grad is not None
    assert zero.grad.isfinite().all()
    assert nuclear_norm(torch.eye(3, dtype=torch.float16)).item() == pytest.approx(3.0)


def test_gats_loss_runs_through_both_passes_and_lambda_is_boosted_from_epoch_87_of_100() -> None:
    method, values = prepared("gat", epochs=100), []
    for epoch in (86, 87):
        method.begin_epoch(epoch)
        values.append(method.lam.item())
    assert values == [10.0, 40.0]
    ran = run(prepared("gat"))
    clean, adversarial = MODEL(X), MODEL(ran[0].x_adv)
    change = (clean.softmax(1) - adversarial.softmax(1)).square().sum(1).mean()
    assert_loss(ran, F.cross_entropy(clean, Y) + 10 * change)
