"""FGSM-LAW: the checks of more-methods.md, section 3.10."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sora.errors import UserError
from sora.methods import create
from sora.methods.fgsm_law import FGSMLAW, denominator

from .toys import CLASSES, EPS, IMAGE, LINF, batchnorm, gradient_at, images, run, two_layer, uniform

SIZES: Any = {"n_train": 12, "shape": IMAGE, "batch_size": 6, "epochs": 110, "steps_per_epoch": 2}


def prepared(model: nn.Module, **options: object) -> FGSMLAW:
    method = create("fgsm-law", LINF, **options)
    assert isinstance(method, FGSMLAW)
    method.setup(**SIZES, model=model)
    return method


def one_weight(value: float) -> nn.Module:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, value)
    return layer


def average_weight(method: FGSMLAW) -> float:
    assert method.average is not None
    return next(method.average.parameters()).item()


def logits(correct: int, y: Tensor) -> Tensor:
    """Predictions of which the first `correct` are right."""
    shown = torch.where(torch.arange(len(y)) < correct, y, 1 - y)
    return F.one_hot(shown, 2).float()


def test_the_denominator_at_eight_levels() -> None:
    x = torch.full((2, 3, 4, 4), 0.5, dtype=torch.float64)
    value = denominator(x + 8 / 255, x)
    assert value.item() == pytest.approx(0.12598424, abs=1e-8)
    assert (12 / value).item() == pytest.approx(95.250011, abs=1e-6)


def test_weights_of_the_average() -> None:
    method = prepared(one_weight(0.0))
    method.gate.fill_(True)
    expected, c = 0.0, [0.1, 2 / 11, 0.25]
    for n in range(3):
        method.after_update(one_weight(1.0))
        expected = c[n] * expected + (1 - c[n])
        assert average_weight(method) == pytest.approx(expected)
    assert method.n.item() == 3


def test_the_first_update_from_zero_to_one_gives_nine_tenths() -> None:
    method = prepared(one_weight(0.0))
    method.gate.fill_(True)
    method.after_update(one_weight(1.0))
    assert average_weight(method) == pytest.approx(0.9)


@pytest.mark.parametrize(("c_max", "reached"), [(0.999, 8990), (0.9998, 44990)])
def test_the_largest_weight_is_reached_at(c_max: float, reached: int) -> None:
    for n, at_most in ((99 * reached // 100, False), (reached, True), (10 * reached, True)):
        method = prepared(one_weight(1.0).double(), c_max=c_max)
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
def test_only_batches_with_a_large_drop_of_accuracy_count(
    adversarial: int, reference: int, add: int, averages: bool
) -> None:
    method, y = prepared(one_weight(0.0), gate_add=add), torch.arange(100) % 2
    method.judge(logits(adversarial, y), logits(reference, y), y)
    method.after_update(one_weight(1.0))
    assert (method.n.item() == 1) == averages
    assert average_weight(method) == pytest.approx(0.9 if averages else 0.0)


def test_the_attack_on_logits_is_nuats_without_its_nuclear_norm() -> None:
    model, (x, y) = two_layer(), images()
    assert ((x == 0) | (x == 1)).any()  # border pixels
    noise = uniform(x)
    law = prepared(model, attack_logits=True, lam=0.0)
    nuat = create("nuat", LINF, lam=0.0, attack_mode="train")
    ours, _ = run(law, model, x, y, noise=noise)
    theirs, _ = run(nuat, model, x, y, noise=EPS / 2 * noise.sign())
    torch.testing.assert_close(ours.x_adv, theirs.x_adv, rtol=0, atol=1e-12)


def test_the_attack_takes_probabilities_for_logits_by_default() -> None:
    model, (x, y) = two_layer(), images()
    noise = uniform(x)
    start = (x + EPS / 2 * noise.sign()).clamp(0, 1)
    doubled = nn.Sequential(copy.deepcopy(model), nn.Softmax(1))
    g = gradient_at(doubled, start, y)
    assert (g.sign() != gradient_at(model, start, y).sign()).any()
    expected = (x + (start - x + EPS * g.sign()).clamp(-EPS, EPS)).clamp(0, 1)
    out, _ = run(prepared(model), model, x, y, noise=noise)
    torch.testing.assert_close(out.x_adv, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("reference", ["clean", "start"])
def test_loss_and_gradient_run_through_both_passes(reference: str) -> None:
    model, (x, y) = two_layer(), images()
    noise = uniform(x)
    out, gradients = run(prepared(model, reference=reference), model, x, y, noise=noise)
    x0 = x if reference == "clean" else (x + EPS / 2 * noise.sign()).clamp(0, 1)
    rows = torch.full((6, CLASSES), 0.15, dtype=torch.float64)
    rows[torch.arange(6), y] = 0.7
    h0, h1 = model[:-1](x0), model[:-1](out.x_adv)
    z0, z1 = model[-1](h0), model[-1](h1)
    change = (z1.softmax(1) - z0.softmax(1)).square().mean() + (h1.softmax(1) - h0.softmax(1)).square().mean()
    loss = F.cross_entropy(z1, rows) + 12 * change / ((out.x_adv - x0).square().mean() + 0.125)
    torch.testing.assert_close(out.loss, loss.detach(), rtol=1e-6, atol=0)
    for one, other in zip(gradients, torch.autograd.grad(loss, list(model.parameters())), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-9)


def test_the_average_starts_at_the_initial_weights_and_includes_buffers() -> None:
    model, (x, y) = batchnorm(), images(dtype=torch.float32)
    initial = copy.deepcopy(model.state_dict())
    method = prepared(model, theta=10.0)
    assert method.averaged is not None
    method.step(model, x, y)
    method.after_update(model)
    for name, value in method.averaged.state_dict().items():
        current = model.state_dict()[name]
        expected = 0.1 * initial[name] + 0.9 * current if value.is_floating_point() else current
        torch.testing.assert_close(value, expected)
    assert not any(p.requires_grad for p in method.averaged.parameters())


@pytest.mark.parametrize("reference", ["clean", "start"])
def test_batchnorm_sees_the_start_then_the_image_then_the_adversarial_input(reference: str) -> None:
    torch.manual_seed(1)
    layers = [nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4, momentum=0.4), nn.ReLU(), nn.Flatten()]
    model, (x, y) = nn.Sequential(*layers, nn.Linear(16, CLASSES)).double(), images()
    method, noise, inputs = prepared(model, reference=reference), uniform(x), list[Tensor]()
    model.register_forward_pre_hook(lambda module, args: inputs.append(args[0].detach()))
    out = method.step(model, x, y, noise=noise)
    start = (x + EPS / 2 * noise.sign()).clamp(0, 1)
    order = [start, x, out.x_adv] if reference == "clean" else [start, out.x_adv]
    mean, var = torch.zeros(4).double(), torch.ones(4).double()
    for seen, expected in zip(inputs, order, strict=True):
        torch.testing.assert_close(seen, expected, rtol=0, atol=1e-12)
        hidden = model[0](expected).detach()
        mean = 0.6 * mean + 0.4 * hidden.mean((0, 2, 3))
        var = 0.6 * var + 0.4 * hidden.transpose(0, 1).flatten(1).var(1)
    torch.testing.assert_close(model[1].running_mean, mean, rtol=0, atol=1e-12)
    torch.testing.assert_close(model[1].running_var, var, rtol=0, atol=1e-12)


def test_features_are_not_held_after_the_step() -> None:
    model, (x, y) = two_layer(), images()
    method = prepared(model)
    method.step(model, x, y)
    with pytest.raises(UserError, match="was not used"):
        _ = method.features.last
    assert not model[-1]._forward_pre_hooks


def test_misuse_is_refused_in_one_line() -> None:
    with pytest.raises(UserError, match=r"averages weights; call setup\(model=\)"):
        create("fgsm-law", LINF).setup(**SIZES)


def test_a_batch_in_parts_is_judged_as_a_whole() -> None:
    method, y = prepared(one_weight(0.0)), torch.zeros(50, dtype=torch.long)
    theta = method.hyper.theta
    for first, second, expected in ((0, 50, theta > 0.5), (0, 10, theta > 0.1), (50, 50, False)):
        method.ends_batch = False
        method.judge(logits(first, y), logits(50, y), y)
        method.ends_batch = True
        method.judge(logits(second, y), logits(50, y), y)
        assert bool(method.gate) == expected
