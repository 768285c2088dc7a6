"""Label smoothing as a general option: the numbers of more-methods.md, section 4.1, and where it applies."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sora import methods
from sora.errors import UserError
from sora.methods import Smoothing, create, soft_targets

from .toys import CLASSES, LINF, gradient_at, images, run, two_layer, uniform

LOGITS = torch.tensor([[2.0, *[0.0] * 9]], dtype=torch.float64)
LABEL = torch.tensor([0])
KINDS = ("uniform", "others", "random")


@pytest.mark.parametrize(
    ("amount", "kind", "loss", "true", "other"),
    [
        (0.0, "uniform", 0.796614, 1, 0),
        (0.4, "uniform", 1.516614, 0.64, 0.04),
        (0.4, "others", 1.596614, 0.6, 0.044444),
    ],
)
def test_losses_and_rows_of_ten_classes(
    amount: float, kind: str, loss: float, true: float, other: float
) -> None:
    assert Smoothing(amount, kind).loss(LOGITS, LABEL).item() == pytest.approx(loss, abs=1e-6)
    row = soft_targets(LOGITS, LABEL, amount, kind)[0]
    assert row.tolist() == pytest.approx([true, *[other] * 9], abs=1e-6)


def test_labels_smoothed_twice_would_have_another_loss() -> None:
    once = soft_targets(LOGITS, LABEL, 0.4, "others")
    twice = F.cross_entropy(LOGITS, once, label_smoothing=0.4).item()
    assert twice == pytest.approx(1.996614, abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("amount", [0.0, 0.3, 1.0])
def test_rows_sum_to_one(kind: str, amount: float) -> None:
    logits, y = torch.randn(50, 7, generator=torch.Generator().manual_seed(0)), torch.arange(50) % 7
    rows = soft_targets(logits, y, amount, kind)
    torch.testing.assert_close(rows.sum(1), torch.ones(50))
    assert (rows >= 0).all()


def test_uniform_smoothing_is_torchs() -> None:
    model, (x, y) = two_layer(), images()
    expected = F.cross_entropy(model(x), y, label_smoothing=0.3)
    torch.testing.assert_close(Smoothing(0.3).loss(model(x), y), expected)


def test_others_with_phi_is_uniform_with_a_larger_amount() -> None:
    phi, classes = 0.6, 10
    ours = soft_targets(LOGITS, LABEL, 1 - phi, "others")
    torch.testing.assert_close(
        ours, soft_targets(LOGITS, LABEL, (1 - phi) * classes / (classes - 1), "uniform")
    )


def test_random_rows_keep_the_true_class_and_are_new_at_every_use() -> None:
    logits, y = torch.zeros(20, 10, dtype=torch.float64), torch.arange(20) % 10
    one, two = (soft_targets(logits, y, 0.4, "random") for _ in range(2))
    assert (one.gather(1, y[:, None]) == 1 - 0.4).all()
    assert not torch.equal(one, two)
    pair = soft_targets(torch.zeros(3, 2), torch.tensor([0, 1, 1]), 0.25, "random")
    torch.testing.assert_close(pair[0], torch.tensor([0.75, 0.25]))


def test_the_amount_may_be_a_tensor_that_stays_on_its_device() -> None:
    rows = soft_targets(LOGITS, LABEL, torch.tensor(0.4), "others")
    torch.testing.assert_close(rows, soft_targets(LOGITS, LABEL, 0.4, "others"), rtol=1e-6, atol=1e-8)


def test_half_precision_logits_get_float32_targets() -> None:
    loss = Smoothing(0.4).loss(LOGITS.half(), LABEL)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(1.516614, abs=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_no_smoothing_is_bit_equal_to_torchs_cross_entropy(
    kind: Literal["uniform", "others", "random"],
) -> None:
    torch.manual_seed(0)
    logits, y = torch.randn(64, 10), torch.randint(10, (64,))
    gradients = []
    for loss in (Smoothing(0.0, kind).loss, F.cross_entropy):
        leaf = logits.clone().requires_grad_()
        value = loss(leaf, y)
        gradients.append((value.detach(), *torch.autograd.grad(value, leaf)))
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)


PLAIN = [name for name in methods.names() if not methods.info(name).own_targets]


@pytest.mark.parametrize("name", PLAIN)
def test_no_smoothing_is_bit_equal_to_the_plain_method(name: str) -> None:
    results = []
    for options in ({}, {"smoothing": 0.0, "smoothing_kind": "random", "smooth_attack": True}):
        torch.manual_seed(0)
        method = create(name, LINF, **options)
        method.setup(n_train=6, shape=(2, 4, 4), batch_size=6, epochs=30, steps_per_epoch=1, classes=CLASSES)
        method.begin_epoch(1)
        results.append(run(method, two_layer(), *images(), index=torch.arange(6)))
    assert torch.equal(results[0][0].x_adv, results[1][0].x_adv)
    for one, other in zip(results[0][1], results[1][1], strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", PLAIN)
def test_smoothing_changes_the_weight_update_of_every_method(name: str) -> None:
    gradients = []
    for smoothing in (0.0, 0.5):
        torch.manual_seed(0)
        method = create(name, LINF, smoothing=smoothing, smooth_attack=False)
        method.setup(n_train=6, shape=(2, 4, 4), batch_size=6, epochs=30, steps_per_epoch=1, classes=CLASSES)
        method.begin_epoch(1)
        out, left = run(method, two_layer(), *images(), index=torch.arange(6))
        gradients.append((out, left))
    (plain, before), (smooth, after) = gradients
    assert torch.equal(plain.x_adv, smooth.x_adv)
    assert torch.equal(plain.accuracy, smooth.accuracy)
    assert not all(torch.allclose(a, b) for a, b in zip(before, after, strict=True))


def attacked_and_expected(**options: object) -> tuple[Tensor, Tensor, Tensor]:
    """What FGSM-RS attacks with, and its steps along the gradients of hard and of smoothed labels."""
    model, (x, y) = two_layer(), images()
    with torch.no_grad():
        model[-1].bias.copy_(torch.tensor([3.0, 0.0, -3.0]))  # confident: smoothing turns gradients around
    eta = uniform(x)
    out, _ = run(create("fgsm-rs", LINF, smoothing=0.9, **options), model, x, y, noise=eta)
    start = (x + eta).clamp(0, 1)
    leaf = start.clone().requires_grad_()
    F.cross_entropy(model(leaf), y, label_smoothing=0.9).backward()
    assert leaf.grad is not None
    steps = []
    for g in (gradient_at(model, start, y), leaf.grad):
        moved = (start - x + 1.25 * LINF.eps * g.sign()).clamp(-LINF.eps, LINF.eps)
        steps.append((x + moved).clamp(0, 1))
    assert not torch.allclose(*steps)
    return out.x_adv, steps[0], steps[1]


def test_the_attack_uses_the_smoothed_labels() -> None:
    x_adv, _, smooth = attacked_and_expected()
    torch.testing.assert_close(x_adv, smooth, rtol=0, atol=1e-9)


def test_smooth_attack_off_restricts_smoothing_to_the_update() -> None:
    x_adv, hard, _ = attacked_and_expected(smooth_attack=False)
    torch.testing.assert_close(x_adv, hard, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", [name for name in methods.names() if methods.info(name).own_targets])
def test_a_method_with_targets_of_its_own_refuses_smoothing(name: str) -> None:
    with pytest.raises(UserError, match=rf"smoothing is 0\.4, but {name} has targets of its own"):
        create(name, LINF, smoothing=0.4)
    create(name, LINF, smoothing=0)


def test_bad_values_are_refused_in_one_line() -> None:
    with pytest.raises(UserError, match=r"smoothing is 1\.5; allowed: 0 to 1"):
        create("fgsm-rs", LINF, smoothing=1.5)
    with pytest.raises(UserError, match="smoothing_kind is 'other'; did you mean 'others'"):
        create("fgsm-rs", LINF, smoothing_kind="other")
