from __future__ import annotations

import pytest
import torch

from sora import curvature
from sora.errors import UserError
from sora.methods import create
from sora.methods.gradalign import misalignment
from sora.threat import Linf

from .toys import EPS, LINF, assert_same, gradient_at, images, line, run, two_layer, uniform


def test_lambda_zero_equals_fgsm_rs() -> None:
    model, (x, y) = two_layer(), images()
    eta = uniform(x)
    one = run(create("gradalign", LINF, lam=0), model, x, y, noise=eta)
    assert_same(one, run(create("fgsm-rs", LINF), model, x, y, noise=eta))


def test_a_two_class_linear_model_is_perfectly_aligned() -> None:
    model = line(torch.linspace(-1, 1.1, 32, dtype=torch.float64))
    x, y = images()
    out, _ = run(create("gradalign", LINF), model, x, y % 2)
    assert out.extras["omega"].item() == pytest.approx(0.0, abs=1e-12)


def test_loss_is_cross_entropy_plus_lambda_omega() -> None:
    model, (x, y) = two_layer(), images()
    eta = uniform(x)
    out, gradients = run(create("gradalign", LINF, lam=2.0), model, x, y, noise=eta)
    g1, g2 = gradient_at(model, x, y), gradient_at(model, (x + eta).clamp(0, 1), y)
    omega = 1 - curvature.cosine(g1, g2)[0].mean()
    torch.testing.assert_close(out.extras["omega"], omega)
    plain = torch.nn.functional.cross_entropy(model(out.x_adv), y)
    torch.testing.assert_close(out.loss, plain.detach() + 2.0 * omega)
    _, without = run(create("gradalign", LINF, lam=0), model, x, y, noise=eta)
    assert max((a - b).abs().max() for a, b in zip(gradients, without, strict=True)) > 1e-6


def test_second_order_gradient_is_the_derivative_of_the_loss_through_g2_alone() -> None:
    model, (x, y) = two_layer(), images()
    eta, h = uniform(x), 1e-6
    method = create("gradalign", LINF, lam=3.0, alpha=0)  # alpha 0: x_adv does not move with the weights
    _, gradients = run(method, model, x, y, noise=eta)
    start = (x + eta).clamp(0, 1)
    g1 = gradient_at(model, x, y)  # a constant in the regulariser
    weight, values = model[1].weight, []
    for shift in (h, -2 * h):
        with torch.no_grad():
            weight[0, 0] += shift
        plain = torch.nn.functional.cross_entropy(model(start), y)
        values.append((plain + 3.0 * misalignment(g1, gradient_at(model, start, y))).item())
    assert gradients[0][0, 0].item() == pytest.approx((values[0] - values[1]) / (2 * h), rel=1e-4)


@pytest.mark.parametrize(("pixels", "expected"), [(4, 0.063), (8, 0.2), (12, 0.632), (16, 2.0)])
def test_lambda_by_radius_gives_the_authors_values(pixels: int, expected: float) -> None:
    model, (x, y) = two_layer(), images()

    def weight(**hyper: str) -> float:
        out, _ = run(create("gradalign", Linf(pixels / 255), **hyper), model, x, y)
        plain = torch.nn.functional.cross_entropy(model(out.x_adv), y)
        return ((out.loss - plain) / out.extras["omega"]).item()

    assert weight(lambda_rule="eps") == pytest.approx(expected, abs=1e-3)
    assert weight() == pytest.approx(0.2, abs=1e-6)


def test_zero_start_is_plain_fgsm_with_the_regulariser_at_unboxed_noise() -> None:
    model, (x, y) = two_layer(), images()
    eta = uniform(x)
    out, _ = run(create("gradalign", LINF, start="zero"), model, x, y, noise=eta)
    fgsm, _ = run(create("fgsm", LINF), model, x, y)
    torch.testing.assert_close(out.x_adv, fgsm.x_adv, rtol=0, atol=1e-12)
    torch.testing.assert_close(out.pert_align, fgsm.pert_align)
    g1, g2 = gradient_at(model, x, y), gradient_at(model, x + eta, y)
    torch.testing.assert_close(out.extras["omega"], misalignment(g1, g2))


def test_pert_align_uses_the_gradient_at_the_noisy_start() -> None:
    model, (x, y) = two_layer(), images()
    eta = uniform(x)
    out, _ = run(create("gradalign", LINF), model, x, y, noise=eta)
    g2, adv = gradient_at(model, (x + eta).clamp(0, 1), y), gradient_at(model, out.x_adv, y)
    torch.testing.assert_close(out.pert_align, curvature.pert_align(g2, adv))


def test_examples_without_gradient_are_left_out_and_none_left_gives_zero() -> None:
    g1 = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    g2 = torch.tensor([[0.0, 1.0], [1.0, 1.0]], requires_grad=True)
    assert misalignment(g1, g2).item() == 1.0
    none = misalignment(torch.zeros(2, 2), g2)
    assert none.item() == 0.0
    none.backward()
    assert (g2.grad == 0).all()


def test_bad_hyper_parameters_are_refused() -> None:
    with pytest.raises(UserError, match=r"gradalign\.lam is -0\.1; allowed: 0 or more"):
        create("gradalign", LINF, lam=-0.1)
    with pytest.raises(UserError, match=r"gradalign\.start is 'clean'; allowed: random, zero"):
        create("gradalign", LINF, start="clean")


def test_the_attack_step_is_fgsm_rs_step() -> None:
    model, (x, y) = two_layer(), images()
    eta = uniform(x)
    out, _ = run(create("gradalign", LINF), model, x, y, noise=eta)
    start = (x + eta).clamp(0, 1)
    delta = (start - x + 1.25 * EPS * gradient_at(model, start, y).sign()).clamp(-EPS, EPS)
    torch.testing.assert_close(out.x_adv, (x + delta).clamp(0, 1), rtol=0, atol=1e-12)
