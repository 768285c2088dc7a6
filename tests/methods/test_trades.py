from __future__ import annotations

import copy

import pytest
import torch

from sora.errors import UserError
from sora.methods import create
from sora.methods.trades import divergence

from .toys import BALLS, EPS, LINF, assert_same_gradients, batchnorm, images, run, two_layer


def test_beta_zero_trains_like_benign() -> None:
    model, (x, y) = two_layer(), images()
    out, gradients = run(create("trades", LINF, beta=0), model, x, y)
    plain, expected = run(create("benign", LINF), model, x, y)
    assert_same_gradients(gradients, expected)
    torch.testing.assert_close(out.loss, plain.loss)


def test_divergence_of_the_reference_logits() -> None:
    clean, other = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[0.0, 1.0, 0.0]])
    assert divergence(clean, other).item() == pytest.approx(0.364175, abs=1e-6)


def test_no_perturbation_has_no_divergence() -> None:
    model, (x, _) = two_layer(), images()
    assert divergence(model(x), model(x)).abs().max().item() == pytest.approx(0.0, abs=1e-12)


def test_loss_is_clean_cross_entropy_plus_beta_times_the_mean_divergence() -> None:
    model, (x, y) = two_layer(), images()
    out, _ = run(create("trades", LINF), model, x, y)
    p, q = model(x).softmax(1), model(out.x_adv).softmax(1)
    expected = torch.nn.functional.cross_entropy(model(x), y) + 6 * (p * (p / q).log()).sum(1).mean()
    torch.testing.assert_close(out.loss, expected.detach())
    assert out.pert_align.isnan()
    assert out.linearity.isnan()


def test_gradient_flows_through_both_sides_of_the_divergence() -> None:
    model, (x, y) = two_layer(), images()
    torch.manual_seed(0)
    out, gradients = run(create("trades", LINF), model, x, y)
    p, q = model(x).log_softmax(1), model(out.x_adv).log_softmax(1)
    loss = torch.nn.functional.cross_entropy(model(x), y) + 6 * (p.exp() * (p - q)).sum(1).mean()
    assert_same_gradients(gradients, list(torch.autograd.grad(loss, list(model.parameters()))))


def test_attack_ascends_the_divergence_step_by_step() -> None:
    model, (x, y) = two_layer(), images()
    noise = 0.001 * torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(2))
    out, _ = run(create("trades", LINF, steps=2), model, x, y, noise=noise)
    at = x + noise
    p = model(x).detach().softmax(1)
    for _ in range(2):
        leaf = at.clone().requires_grad_()
        kl = (p * (p.log() - model(leaf).log_softmax(1))).sum()
        (g,) = torch.autograd.grad(kl, leaf)
        at = (x + (at - x + EPS / 4 * g.sign()).clamp(-EPS, EPS)).clamp(0, 1)
    torch.testing.assert_close(out.x_adv, at, rtol=0, atol=1e-9)


def test_attack_runs_in_evaluation_mode_and_the_update_passes_in_the_authors_order() -> None:
    model, (x, y) = batchnorm(), images(dtype=torch.float32)
    passes = []
    model.register_forward_hook(lambda module, args, out: passes.append((module.training, args[0].detach())))
    out = create("trades", LINF).step(model, x, y)
    assert [training for training, _ in passes] == [False] * 11 + [True] * 3
    update = [inputs for training, inputs in passes if training]
    assert [torch.equal(inputs, x) for inputs in update] == [True, False, True]
    assert torch.equal(update[1], out.x_adv)


def test_running_statistics_are_those_of_a_clean_an_adversarial_and_a_clean_pass() -> None:
    model, (x, y) = batchnorm(), images(dtype=torch.float32)
    expected = copy.deepcopy(model)
    out = create("trades", LINF).step(model, x, y)
    with torch.no_grad():
        for inputs in (x, out.x_adv, x):
            expected(inputs)
    torch.testing.assert_close(model[1].running_mean, expected[1].running_mean)
    torch.testing.assert_close(model[1].running_var, expected[1].running_var)


def test_l2_attack_steps_by_two_eps_over_k_and_takes_the_box_before_the_ball() -> None:
    model, (x, y), eps = two_layer(), images(), 0.5
    noise = 0.001 * torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(2))
    out, _ = run(create("trades", BALLS["l2"], steps=4), model, x, y, noise=noise)
    at, p = x + noise, model(x).detach().softmax(1)
    for _ in range(4):
        leaf = at.clone().requires_grad_()
        (g,) = torch.autograd.grad((p * (p.log() - model(leaf).log_softmax(1))).sum(), leaf)
        g = g / g.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
        delta = (at + 2 * eps / 4 * g).clamp(0, 1) - x
        at = x + torch.renorm(delta, 2, 0, eps)
    torch.testing.assert_close(out.x_adv, at, rtol=0, atol=1e-6)
    assert out.step_size.item() == pytest.approx(2 * eps / 4)


def test_gradient_stays_finite_where_a_probability_underflows() -> None:
    clean = torch.tensor([[200.0, 0.0, -200.0]], requires_grad=True)
    divergence(clean, torch.tensor([[0.0, 200.0, 0.0]])).sum().backward()
    assert clean.grad is not None
    assert clean.grad.isfinite().all()


def test_l2_perturbation_has_length_up_to_eps() -> None:
    model, (x, y) = two_layer(), images()
    out, _ = run(create("trades", BALLS["l2"]), model, x, y)
    length = (out.x_adv - x).flatten(1).norm(dim=1)
    assert (length <= 0.5 + 1e-6).all()
    assert (length > 0.3).all()


def test_bad_hyper_parameters_are_refused() -> None:
    with pytest.raises(UserError, match=r"trades\.beta is -6\.0; allowed: 0 or more"):
        create("trades", LINF, beta=-6)
    with pytest.raises(UserError, match=r"trades\.steps is 0; allowed: 1 or more"):
        create("trades", LINF, steps=0)
