"""FGSM-LASS: the checks of more-methods.md, section 3.9."""

from __future__ import annotations

import copy
import itertools
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sora.errors import UserError
from sora.methods import create
from sora.methods.fgsm_lass import FGSMLASS, StepPredictor

from .toys import CLASSES, EPS, IMAGE, LINF, assert_same, images, run, two_layer, uniform


def prepared(**options: object) -> FGSMLASS:
    torch.manual_seed(0)
    method = create("fgsm-lass", LINF, **options)
    assert isinstance(method, FGSMLASS)
    sizes: Any = {"n_train": 12, "batch_size": 6, "epochs": 110, "steps_per_epoch": 2}
    method.setup(shape=IMAGE, **sizes)
    method.begin_epoch(1)
    return method


def predictor(method: FGSMLASS) -> StepPredictor:
    assert method.predictor is not None
    return method.predictor


def constant(method: FGSMLASS, bias: float) -> FGSMLASS:
    """The predictor returns sigmoid(bias) for every image."""
    nn.init.zeros_(predictor(method).last.weight)
    nn.init.constant_(predictor(method).last.bias, bias)
    return method


def test_a_zero_last_layer_predicts_half_of_the_largest_step() -> None:
    model, (x, y) = two_layer(), images()
    method = constant(prepared(step_lr=0.0), 0.0)
    out, _ = run(method, model, x, y)
    assert out.step_size.item() == pytest.approx(0.625 * EPS)
    lengths = method._lengths(predictor(method), x)
    torch.testing.assert_close(lengths, torch.full((6, 1, 1, 1), 0.625 * EPS, dtype=x.dtype))


def test_the_largest_step_and_hard_labels_make_fgsm_rs() -> None:
    model, (x, y) = two_layer(), images()
    noise, method = uniform(x), constant(prepared(phi=1.0), 100.0)
    assert_same(run(method, model, x, y, noise=noise), run(create("fgsm-rs", LINF), model, x, y, noise=noise))


def test_a_step_of_zero_leaves_the_start() -> None:
    model, (x, y) = two_layer(), images()
    noise = uniform(x)
    out, _ = run(constant(prepared(), -1000.0), model, x, y, noise=noise)
    torch.testing.assert_close(out.x_adv, (x + noise).clamp(0, 1), rtol=0, atol=1e-12)


def test_the_predictor_has_2241_parameters_for_colour_images() -> None:
    assert sum(p.numel() for p in StepPredictor(3).parameters()) == 2241


def weights(method: FGSMLASS) -> list[Tensor]:
    return [p.detach().clone() for p in predictor(method).parameters()]


def test_an_epoch_of_391_batches_has_20_predictor_steps() -> None:
    method = prepared()
    assert sum(method.batches.due(20) for _ in range(391)) == 20


def test_a_scaled_loss_trains_the_predictor_alike() -> None:
    model, (x, y) = two_layer(), images()
    noise, results = uniform(x), []
    for scale in (None, 1024.0):
        method = prepared(step_lr=0.1)
        with mock.patch.object(method.sgd, "minimize", wraps=method.sgd.minimize) as minimize:
            method.step(model, x, y, noise=noise, loss_scale=scale)
        assert minimize.call_args.args[1] == scale
        results.append(weights(method))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def test_the_predictor_is_constant_between_its_steps() -> None:
    model, (x, y) = two_layer(), images()
    method = prepared(every=2, step_lr=0.1)
    seen = [weights(method)]
    for _ in range(3):
        method.step(model, x, y)
        seen.append(weights(method))
    changed = [not all(map(torch.equal, a, b)) for a, b in itertools.pairwise(seen)]
    assert changed == [True, False, True]


def test_the_predictor_raises_the_loss_through_the_unclipped_steps() -> None:
    """The first SGD step equals one on a loss written out by hand; the attack then uses the new predictor."""
    model, (x, y) = two_layer(), images()
    rate, noise = 0.5, uniform(x)
    method = prepared(step_lr=rate)
    by_hand = copy.deepcopy(predictor(method)).train()
    start = (x + noise).clamp(0, 1)
    leaf = start.clone().requires_grad_()
    (g,) = torch.autograd.grad(F.cross_entropy(model(leaf), y), leaf)  # hard labels
    lengths = 1.25 * EPS * by_hand(x).double().view(-1, 1, 1, 1)
    raw = start - x + lengths * g.sign()
    inside = (raw.abs() <= EPS).double()
    moved = raw * inside + (raw.clamp(-EPS, EPS) * (1 - inside)).detach()
    value = (x + moved).clamp(0, 1).detach() - x
    rows = torch.full((6, CLASSES), 0.05, dtype=torch.float64)
    rows[torch.arange(6), y] = 0.9
    loss = F.cross_entropy(model(x + moved + (value - moved).detach()), rows)
    gradients = torch.autograd.grad(loss, list(by_hand.parameters()))
    expected = [p + rate * (d - 5e-4 * p) for p, d in zip(by_hand.parameters(), gradients, strict=True)]
    out, _ = run(method, model, x, y, noise=noise)
    for one, other in zip(predictor(method).parameters(), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert any((d.abs() > 1e-6).any() for d in gradients)
    after = 1.25 * EPS * predictor(method).eval()(x).double().view(-1, 1, 1, 1)
    x_adv = (x + (start - x + after * g.sign()).clamp(-EPS, EPS)).clamp(0, 1)
    torch.testing.assert_close(out.x_adv, x_adv.detach(), rtol=0, atol=1e-9)


def test_the_predictor_stays_finite_when_the_network_does_not() -> None:
    model, (x, y) = two_layer(), images()
    nn.init.constant_(model[-1].bias, torch.nan)
    method = prepared()
    method.step(model, x, y)
    assert all(value.isfinite().all() for value in weights(method))


def test_misuse_is_refused_in_one_line() -> None:
    model, (x, y) = two_layer(), images()
    with pytest.raises(UserError, match=r"has a predictor of step sizes; call setup"):
        create("fgsm-lass", LINF).step(model, x, y)


def test_the_predictor_adds_two_convolutions_of_stride_two() -> None:
    torch.manual_seed(0)
    part, x = StepPredictor(1).eval(), torch.rand(5, 7, 8, 1).permute(0, 3, 1, 2)  # channels-last
    wide = F.conv2d(x.contiguous(), part.wide.weight, stride=2, padding=1)
    point = x[:, :, ::2, ::2] * part.point.weight.view(1, 64, 1, 1)
    normalised = (wide + point) / (1 + part.wide_norm.eps) ** 0.5
    expected = part.last(normalised.relu().mean((2, 3))).squeeze(1).sigmoid()
    torch.testing.assert_close(part(x), expected)
