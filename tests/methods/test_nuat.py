from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from sora.errors import UserError
from sora.methods import Crafted, Inputs, create
from sora.methods.nuat import nuclear_norm

from .toys import EPS, LINF, assert_same_gradients, batchnorm, images, run, two_layer


def test_nuclear_norm_of_a_diagonal_and_its_weight() -> None:
    diagonal = torch.diag(torch.tensor([3.0, 4.0]))
    assert nuclear_norm(diagonal).item() == pytest.approx(7.0)

    class ZeroAtZero(nn.Module):  # f(x) = 0 at x = 0, the diagonal elsewhere
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            return self.scale * torch.where((x == 0).all(), 0.0, diagonal) + 0 * x

    method = create("nuat", LINF, lam=4.0)
    x, y, logits = torch.zeros(2, 2), torch.tensor([0, 1]), diagonal
    loss = method.objective(ZeroAtZero(), logits, Inputs(x, y, ()), Crafted(x))
    assert loss.item() == pytest.approx(math.log(2) + 14.0, rel=1e-6)


def test_lambda_zero_trains_like_benign() -> None:
    model, (x, y) = two_layer(), images()
    out, gradients = run(create("nuat", LINF, lam=0), model, x, y)
    plain, expected = run(create("benign", LINF), model, x, y)
    assert_same_gradients(gradients, expected)
    torch.testing.assert_close(out.loss, plain.loss)


def test_perturbation_stays_in_the_ball() -> None:
    model, (x, y) = two_layer(), images()
    out, _ = run(create("nuat", LINF), model, x, y)
    size = (out.x_adv - x).abs().max()
    assert 0.9 * EPS < size <= EPS + 1e-6


def test_attack_ascends_cross_entropy_plus_nuclear_norm_from_signed_noise() -> None:
    model, (x, y) = two_layer(), images()
    method = create("nuat", LINF)
    torch.manual_seed(0)
    (noise,) = method.draw(x)
    torch.testing.assert_close(noise.abs(), torch.full_like(x, EPS / 2))
    assert 0.3 < (noise > 0).double().mean() < 0.7
    start = (x + noise).clamp(0, 1).requires_grad_()
    reference = model(x).detach()
    objective = nn.functional.cross_entropy(model(start), y)
    objective = objective + 4.0 / len(x) * torch.linalg.svdvals(model(start) - reference).sum()
    (g,) = torch.autograd.grad(objective, start)
    moved = ((start + EPS * g.sign()).clamp(0, 1) - x).clamp(-EPS, EPS)
    out, _ = run(method, model, x, y, noise=noise)
    torch.testing.assert_close(out.x_adv, (x + moved).clamp(0, 1), rtol=0, atol=1e-9)


def test_loss_is_clean_cross_entropy_plus_the_norm_of_the_logits_change() -> None:
    model, (x, y) = two_layer(), images()
    out, _ = run(create("nuat", LINF, lam=2.0), model, x, y)
    clean, adv = model(x), model(out.x_adv)
    expected = nn.functional.cross_entropy(clean, y) + 2.0 / 6 * torch.linalg.svdvals(adv - clean).sum()
    torch.testing.assert_close(out.loss, expected.detach())
    assert out.pert_align.isnan()
    assert out.linearity.isnan()


def test_only_the_attack_pass_runs_in_evaluation_mode() -> None:
    model, (x, y) = batchnorm(), images(dtype=torch.float32)
    modes = []
    model.register_forward_hook(lambda module, args, out: modes.append(module.training))
    create("nuat", LINF).step(model, x, y)
    assert modes == [True, False, True, True]
    assert int(model[1].num_batches_tracked) == 3


def test_uniform_noise_is_an_option() -> None:
    (noise,) = create("nuat", LINF, noise="uniform").draw(torch.zeros(40, 2, 4, 4))
    assert noise.abs().max() <= EPS
    assert noise.abs().max() > 0.9 * EPS
    assert noise.abs().min() < 0.1 * EPS


def test_ramp_rises_after_each_of_the_first_epochs_and_is_constant_for_the_last_ten() -> None:
    method = create("nuat", LINF, lam=4.5, ramp=True)
    method.setup(n_train=9, shape=(2, 4, 4), batch_size=6, epochs=100, steps_per_epoch=2)
    values = []
    for epoch in range(1, 101):
        method.begin_epoch(epoch)
        values.append(method.lam.item())
    assert values[0] == 0.0
    assert values[1] == pytest.approx(4.5 / 90)
    assert values[45] == pytest.approx(2.25)
    assert values[89] < 4.5
    assert values[90:] == [4.5] * 10


def test_without_ramp_lambda_is_constant() -> None:
    method = create("nuat", LINF)
    method.setup(n_train=9, shape=(2, 4, 4), batch_size=6, epochs=100, steps_per_epoch=2)
    method.begin_epoch(1)
    assert method.lam.item() == 4.0


def test_alternating_leaves_the_norm_out_of_every_other_attack_from_an_epochs_first() -> None:
    model, (x, y) = two_layer(), images()
    noise = (torch.rand(x.shape, dtype=x.dtype) - 0.5).sign() * EPS / 2
    plain = run(create("nuat", LINF, lam=1000.0), copy.deepcopy(model), x, y, noise=noise)[0].x_adv
    weak = create("nuat", LINF, lam=0.0)
    cross_entropy_only = run(weak, model, x, y, noise=noise)[0].x_adv
    assert not torch.equal(plain, cross_entropy_only)
    method = create("nuat", LINF, lam=1000.0, alternate=True)
    method.begin_epoch(1)
    seen = [run(method, model, x, y, noise=noise)[0].x_adv for _ in range(3)]
    method.begin_epoch(2)
    seen.append(run(method, model, x, y, noise=noise)[0].x_adv)
    for x_adv, expected in zip(seen, [cross_entropy_only, plain, *[cross_entropy_only] * 2], strict=True):
        assert torch.equal(x_adv, expected)


def test_nuclear_norm_survives_nan_zero_and_half_precision() -> None:
    bad = torch.tensor([[1.0, math.nan], [0.0, 1.0]], requires_grad=True)
    assert nuclear_norm(bad).isnan()
    zero = torch.zeros(3, 2, requires_grad=True)
    nuclear_norm(zero).backward()
    assert zero.grad is not None
    assert zero.grad.isfinite().all()
    assert nuclear_norm(torch.eye(3, dtype=torch.float16)).item() == pytest.approx(3.0)


def test_bad_hyper_parameters_are_refused() -> None:
    with pytest.raises(UserError, match=r"nuat\.lam is -4\.0; allowed: 0 or more"):
        create("nuat", LINF, lam=-4)
    with pytest.raises(
        UserError, match=r"nuat\.noise is 'normal'; did you mean 'uniform'\? allowed: signs, uniform"
    ):
        create("nuat", LINF, noise="normal")
