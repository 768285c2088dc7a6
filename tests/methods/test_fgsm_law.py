"""FGSM-LAW: the checks of more-methods.md, section 3.10."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sora.errors import UserError

from .toys import EPS, ETA, MODEL, X, Y, assert_loss, batchnorm, gradient_at, passes, prepared, rows, run


def one_weight(value: float) -> nn.Module:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, value)
    return layer


def average_weight(method: Any) -> float:
    return next(method.average.parameters()).item()


def logits(correct: int, y: Tensor) -> Tensor:
    """Predictions of which the first `correct` are right."""
    shown = torch.where(torch.arange(len(y)) < correct, y, 1 - y)
    return F.one_hot(shown, 2).float()


def test_weights_of_the_average() -> None:
    method = prepared("fgsm-law", model=one_weight(0.0))
    method.gate.fill_(True)
    expected, c = 0.0, [0.1, 2 / 11, 0.25]
    for n in range(3):  # 0.9 after the first
        method.after_update(one_weight(1.0))
        expected = c[n] * expected + (1 - c[n])
        assert average_weight(method) == pytest.approx(expected)
    assert method.n.item() == 3


@pytest.mark.parametrize(("c_max", "reached"), [(0.999, 8990), (0.9998, 44990)])
def test_the_largest_weight_is_reached_at(c_max: float, reached: int) -> None:
    for n, at_most in ((99 * reached // 100, False), (reached, True), (10 * reached, True)):
        method = prepared("fgsm-law", model=one_weight(1.0).double(), c_max=c_max)
        method.n.fill_(n)
        method.gate.fill_(True)
        method.after_update(one_weight(0.0).double())
        c = c_max if at_most else (n + 1) / (n + 10)
        assert average_weight(method) == pytest.approx(c, abs=1e-7)
        assert (c < c_max - 1e-6) == (not at_most)


@pytest.mark.parametrize(
    ("adversarial", "reference", "add", "averages"),
    [(60, 80, 0, True), (70, 80, 0, False), (0, 0, 0, False), (0, 0, 1, True), (65, 79, 1, True)],
)
def test_only_batches_with_a_large_drop_of_accuracy_count(adversarial, reference, add, averages) -> None:
    method, y = prepared("fgsm-law", model=one_weight(0.0), gate_add=add), torch.arange(100) % 2
    method.judge(logits(adversarial, y), logits(reference, y), y)
    method.after_update(one_weight(1.0))
    assert (method.n.item() == 1) == averages
    assert average_weight(method) == pytest.approx(0.9 if averages else 0.0)


def test_the_attack_takes_probabilities_for_logits_by_default() -> None:
    start = (X + EPS / 2 * ETA.sign()).clamp(0, 1)
    g = gradient_at(nn.Sequential(MODEL, nn.Softmax(1)), start, Y)
    assert (g.sign() != gradient_at(MODEL, start, Y).sign()).any()
    expected = (X + (start - X + EPS * g.sign()).clamp(-EPS, EPS)).clamp(0, 1)
    out, _ = run(prepared("fgsm-law"), noise=ETA)
    torch.testing.assert_close(out.x_adv, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("reference", ["clean", "start"])
def test_loss_and_gradient_run_through_both_passes(reference: str) -> None:
    ran = run(prepared("fgsm-law", reference=reference), noise=ETA)
    x0 = X if reference == "clean" else (X + EPS / 2 * ETA.sign()).clamp(0, 1)
    h0, h1 = MODEL[:-1](x0), MODEL[:-1](ran[0].x_adv)
    z0, z1 = MODEL[-1](h0), MODEL[-1](h1)
    change = (z1.softmax(1) - z0.softmax(1)).square().mean() + (h1.softmax(1) - h0.softmax(1)).square().mean()
    distance = (ran[0].x_adv - x0).square().mean() + 0.125
    assert_loss(ran, F.cross_entropy(z1, rows(0.7)) + 12 * change / distance)


def test_the_average_starts_at_the_initial_weights_and_includes_buffers() -> None:
    model = batchnorm()
    initial = copy.deepcopy(model.state_dict())
    method = prepared("fgsm-law", model=model, theta=10.0)
    assert method.averaged is not None
    method.step(model, X.float(), Y)
    method.after_update(model)
    for name, value in method.averaged.state_dict().items():
        current = model.state_dict()[name]
        expected = 0.1 * initial[name] + 0.9 * current if value.is_floating_point() else current
        torch.testing.assert_close(value, expected)
    assert not any(p.requires_grad for p in method.averaged.parameters())


@pytest.mark.parametrize("reference", ["clean", "start"])
def test_the_passes_are_of_the_start_then_the_image_then_the_adversarial_input(reference: str) -> None:
    """In this order, all in training mode: BatchNorm's statistics depend on it."""
    x, method = X.float(), prepared("fgsm-law", model=batchnorm(), reference=reference)
    out, seen = passes(method, batchnorm(), x, noise=ETA.float())
    start = (X + EPS / 2 * ETA.sign()).clamp(0, 1).float()
    order = [start, x, out.x_adv] if reference == "clean" else [start, out.x_adv]
    for (training, inputs), expected in zip(seen, order, strict=True):
        assert training
        torch.testing.assert_close(inputs, expected, rtol=0, atol=1e-6)


def test_features_are_not_held_and_a_batch_in_parts_is_judged_as_a_whole() -> None:
    model, method = copy.deepcopy(MODEL), prepared("fgsm-law")
    method.step(model, X, Y)
    with pytest.raises(UserError, match="was not used"):
        _ = method.features.last
    assert not model[-1]._forward_pre_hooks
    method, y = prepared("fgsm-law", model=one_weight(0.0)), torch.zeros(50, dtype=torch.long)
    theta = method.hyper.theta
    for first, second, expected in ((0, 50, theta > 0.5), (0, 10, theta > 0.1), (50, 50, False)):
        method.ends_batch = False
        method.judge(logits(first, y), logits(50, y), y)
        method.ends_batch = True
        method.judge(logits(second, y), logits(50, y), y)
        assert bool(method.gate) == expected
