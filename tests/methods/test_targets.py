"""Label smoothing as a general option: the numbers of more-methods.md, section 4.1, and where it applies."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sora import methods
from sora.errors import UserError
from sora.methods import Smoothing, create, soft_targets

from .toys import CLASSES, ETA, LINF, MODEL, X, Y, gradient_at, prepared, rows, run, two_layer

LOGITS = torch.tensor([[2.0, *[0.0] * 9]], dtype=torch.float64)
LABEL = torch.tensor([0])
KINDS = ("uniform", "others", "random")


def loss_with(smoothing: Smoothing, logits: Tensor, y: Tensor) -> Tensor:
    return methods.cross_entropy(logits, smoothing.targets(logits, y))


@pytest.mark.parametrize(
    ("amount", "kind", "loss", "true", "other"),
    [
        (0.0, "uniform", 0.796614, 1, 0),
        (0.4, "uniform", 1.516614, 0.64, 0.04),
        (0.4, "others", 1.596614, 0.6, 0.044444),
    ],
)
def test_losses_and_rows_of_ten_classes(amount, kind, loss, true, other) -> None:
    assert loss_with(Smoothing(amount, kind), LOGITS, LABEL).item() == pytest.approx(loss, abs=1e-6)
    row = soft_targets(LOGITS, LABEL, amount, kind)[0]
    assert row.tolist() == pytest.approx([true, *[other] * 9], abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("amount", [0.0, 0.3, 1.0])
def test_rows_sum_to_one(kind: str, amount: float) -> None:
    logits, y = torch.randn(50, 7, generator=torch.Generator().manual_seed(0)), torch.arange(50) % 7
    rows = soft_targets(logits, y, amount, kind)
    torch.testing.assert_close(rows.sum(1), torch.ones(50))
    assert (rows >= 0).all()


def test_uniform_smoothing_is_torchs_and_random_rows_are_new_at_every_use() -> None:
    expected = F.cross_entropy(MODEL(X), Y, label_smoothing=0.3)
    torch.testing.assert_close(loss_with(Smoothing(0.3), MODEL(X), Y), expected)
    logits, y = torch.zeros(20, 10, dtype=torch.float64), torch.arange(20) % 10
    one, two = (soft_targets(logits, y, 0.4, "random") for _ in range(2))
    assert (one.gather(1, y[:, None]) == 1 - 0.4).all()
    assert not torch.equal(one, two)
    pair = soft_targets(torch.zeros(3, 2), torch.tensor([0, 1, 1]), 0.25, "random")
    torch.testing.assert_close(pair[0], torch.tensor([0.75, 0.25]))


def test_the_amount_may_be_a_tensor_and_half_precision_logits_get_float32_targets() -> None:
    rows = soft_targets(LOGITS, LABEL, torch.tensor(0.4), "others")
    torch.testing.assert_close(rows, soft_targets(LOGITS, LABEL, 0.4, "others"), rtol=1e-6, atol=1e-8)
    loss = loss_with(Smoothing(0.4), LOGITS.half(), LABEL)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(1.516614, abs=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_no_smoothing_is_bit_equal_to_torchs_cross_entropy(kind: Any) -> None:
    torch.manual_seed(0)
    logits, y = torch.randn(64, 10, requires_grad=True), torch.randint(10, (64,))
    ours, theirs = loss_with(Smoothing(0.0, kind), logits, y), F.cross_entropy(logits, y)
    assert torch.equal(ours, theirs)
    assert torch.equal(*(torch.autograd.grad(loss, logits)[0] for loss in (ours, theirs)))


PLAIN = [name for name in methods.names() if not methods.info(name).own_targets]


@pytest.mark.parametrize("name", PLAIN)
def test_smoothing_changes_the_weight_update_of_every_method_and_none_changes_nothing(name: str) -> None:
    off = {"smoothing": 0.0, "smoothing_kind": "random", "smooth_attack": True}
    on = {"smoothing": 0.5, "smooth_attack": False}
    (plain, before), (same, still), (smooth, after) = (
        run(prepared(name, **options)) for options in ({}, off, on)
    )
    assert torch.equal(plain.x_adv, same.x_adv)
    assert all(map(torch.equal, before, still))
    assert torch.equal(plain.x_adv, smooth.x_adv)
    assert torch.equal(plain.accuracy, smooth.accuracy)
    assert not all(torch.allclose(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("smooth_attack", [True, False])
def test_the_attack_uses_the_smoothed_labels_unless_smooth_attack_is_off(smooth_attack: bool) -> None:
    model = two_layer()
    with torch.no_grad():
        model[-1].bias.copy_(torch.tensor([3.0, 0.0, -3.0]))  # confident: smoothing turns gradients around
    out, _ = run(create("fgsm-rs", LINF, smoothing=0.9, smooth_attack=smooth_attack), model, noise=ETA)
    start, steps = (X + ETA).clamp(0, 1), []
    for labels in (Y, rows(1 - 0.9 * (CLASSES - 1) / CLASSES)):
        g = gradient_at(model, start, labels)
        moved = (start - X + 1.25 * LINF.eps * g.sign()).clamp(-LINF.eps, LINF.eps)
        steps.append((X + moved).clamp(0, 1))
    assert not torch.allclose(*steps)
    torch.testing.assert_close(out.x_adv, steps[smooth_attack], rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", [name for name in methods.names() if methods.info(name).own_targets])
def test_a_method_with_targets_of_its_own_refuses_smoothing(name: str) -> None:
    entry = methods.info(name)
    own = rf"targets of its own \({entry.family}\.{entry.own_targets}\)"
    with pytest.raises(UserError, match=rf"smoothing is 0\.4, but {name} has {own}"):
        create(name, LINF, smoothing=0.4)
    create(name, LINF, smoothing=0)
