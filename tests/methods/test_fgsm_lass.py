"""FGSM-LASS: the checks of more-methods.md, section 3.9."""

import copy
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sora.methods import create
from sora.methods.fgsm_lass import StepPredictor

from .toys import EPS, ETA, LINF, MODEL, X, Y, assert_same, gradient_at, prepared, rows, run


def constant(method: Any, bias: float) -> Any:
    """The predictor returns sigmoid(bias) for every image."""
    nn.init.zeros_(method.predictor.last.weight)
    nn.init.constant_(method.predictor.last.bias, bias)
    return method


@pytest.mark.parametrize(("bias", "length"), [(0.0, 0.625 * EPS), (-1000.0, 0.0)])
def test_the_last_layer_sets_the_size_of_the_step(bias: float, length: float) -> None:
    out, _ = run(constant(prepared("fgsm-lass", step_lr=0.0), bias), noise=ETA)
    assert out.step_size.item() == pytest.approx(length)
    start = (X + ETA).clamp(0, 1)
    moved = (start - X + length * gradient_at(MODEL, start, Y).sign()).clamp(-EPS, EPS)
    torch.testing.assert_close(out.x_adv, (X + moved).clamp(0, 1), rtol=0, atol=1e-8)


def test_the_largest_step_and_hard_labels_make_fgsm_rs() -> None:
    method = constant(prepared("fgsm-lass", phi=1.0), 100.0)
    assert_same(run(method, noise=ETA), run(create("fgsm-rs", LINF), noise=ETA))


def weights(method: Any) -> list[Tensor]:
    return [p.detach().clone() for p in method.predictor.parameters()]


def test_a_scaled_loss_trains_the_predictor_alike() -> None:
    results = []
    for scale in (None, 1024.0):
        method = prepared("fgsm-lass", step_lr=0.1)
        with mock.patch.object(method.sgd, "minimize", wraps=method.sgd.minimize) as minimize:
            run(method, noise=ETA, loss_scale=scale)
        assert minimize.call_args.args[1] == scale
        results.append(weights(method))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def test_the_predictor_raises_the_loss_through_the_unclipped_steps() -> None:
    """The first SGD step equals one on a loss written out by hand; the attack then uses the new predictor."""
    rate = 0.5
    method = prepared("fgsm-lass", step_lr=rate)
    by_hand = copy.deepcopy(method.predictor).train()
    start = (X + ETA).clamp(0, 1)
    g = gradient_at(MODEL, start, Y)  # hard labels
    lengths = 1.25 * EPS * by_hand(X).double().view(-1, 1, 1, 1)
    raw = start - X + lengths * g.sign()
    inside = (raw.abs() <= EPS).double()
    moved = raw * inside + (raw.clamp(-EPS, EPS) * (1 - inside)).detach()
    value = (X + moved).clamp(0, 1).detach() - X
    loss = F.cross_entropy(MODEL(X + moved + (value - moved).detach()), rows(0.9))
    gradients = torch.autograd.grad(loss, list(by_hand.parameters()))
    expected = [p + rate * (d - 5e-4 * p) for p, d in zip(by_hand.parameters(), gradients, strict=True)]
    out, _ = run(method, noise=ETA)
    for one, other in zip(method.predictor.parameters(), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert any((d.abs() > 1e-6).any() for d in gradients)
    after = 1.25 * EPS * method.predictor.eval()(X).double().view(-1, 1, 1, 1)
    x_adv = (X + (start - X + after * g.sign()).clamp(-EPS, EPS)).clamp(0, 1)
    torch.testing.assert_close(out.x_adv, x_adv.detach(), rtol=0, atol=1e-9)


def test_the_predictor_adds_two_convolutions_of_stride_two() -> None:
    torch.manual_seed(0)
    part, x = StepPredictor(1).eval(), torch.rand(5, 7, 8, 1).permute(0, 3, 1, 2)  # channels-last
    wide = F.conv2d(x.contiguous(), part.wide.weight, stride=2, padding=1)
    point = x[:, :, ::2, ::2] * part.point.weight.view(1, 64, 1, 1)
    normalised = (wide + point) / (1 + part.wide_norm.eps) ** 0.5
    expected = part.last(normalised.relu().mean((2, 3))).squeeze(1).sigmoid()
    torch.testing.assert_close(part(x), expected)
