"""LIET: the checks of more-methods.md, section 3.7."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sora.errors import UserError
from sora.methods import create, soft_targets
from sora.methods.liet import LIET, divergence

from .toys import CLASSES, EPS, IMAGE, LINF, assert_same, batchnorm, gradient_at, images, run, two_layer

HARD = {"nu": 0.0, "lam": 0.0}


def prepared(**options: object) -> LIET:
    torch.manual_seed(0)
    method = create("liet", LINF, **options)
    assert isinstance(method, LIET)
    sizes: Any = {"n_train": 12, "batch_size": 6, "steps_per_epoch": 2}
    method.setup(shape=IMAGE, epochs=100, classes=CLASSES, **sizes)
    method.begin_epoch(1)
    return method


def information(method: LIET) -> Tensor:
    assert method.li is not None
    return method.li


def test_divergence_of_opposite_predictions_is_finite() -> None:
    a, b = torch.tensor([[200.0, 0.0]], requires_grad=True), torch.tensor([[0.0, 200.0]], requires_grad=True)
    value = divergence(a, b)
    assert value.item() == pytest.approx(0.693147, abs=1e-6)
    for gradient in torch.autograd.grad(value, (a, b)):
        assert gradient.isfinite().all()


def test_divergence_of_two_logits() -> None:
    a, b = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[0.0, 1.0, 0.0]])
    assert divergence(a, b).item() == pytest.approx(0.087430, abs=1e-6)
    assert 100 * divergence(a, b).item() == pytest.approx(8.743041, abs=1e-5)


def test_the_weight_rises_linearly_over_the_epochs() -> None:
    method, constant = prepared(), prepared(ramp=False)
    for epoch, expected in ((1, 1.0), (50, 50.0), (100, 100.0)):
        method.begin_epoch(epoch)
        constant.begin_epoch(epoch)
        assert method.lam.item() == pytest.approx(expected)
        assert constant.lam.item() == 100


def test_noise_everywhere_makes_fgsm_rs() -> None:
    model, (x, y) = two_layer(), images()
    method = prepared(lo=1.0, hi=1.0, **HARD)
    replaced, noise, _ = method.draw(x)
    assert replaced.all()
    ran = run(method, model, x, y, noise=(replaced, noise, torch.tensor(1)))
    assert_same(ran, run(create("fgsm-rs", LINF, alpha=1.0), model, x, y, noise=noise))


@pytest.mark.parametrize("sign", [1, -1])
def test_without_noise_the_start_is_the_label_information(sign: int) -> None:
    model, (x, y) = two_layer(), images()
    method = prepared(lo=0.0, hi=0.0, **HARD)
    replaced, noise, _ = method.draw(x)
    assert not replaced.any()
    grey = torch.full((CLASSES, *IMAGE), 0.5, dtype=torch.float64)
    expected = EPS * gradient_at(model, grey, torch.arange(CLASSES)).sign()
    starts: list[Tensor] = []
    model.register_forward_pre_hook(lambda module, args: starts.append(args[0].detach()))
    method.step(model, x, y, noise=(replaced, noise, torch.tensor(sign)))
    torch.testing.assert_close(starts[1], (x + sign * expected[y]).clamp(0, 1), rtol=0, atol=1e-7)


def test_random_targets_are_rows_of_probabilities_with_the_true_class_fixed() -> None:
    y = torch.arange(6) % 5
    first, second = (soft_targets(torch.zeros(6, 5), y, 0.6, "random") for _ in range(2))
    torch.testing.assert_close(first.sum(1), torch.ones(6))
    assert (first[torch.arange(6), y] == torch.tensor(1 - 0.6)).all()
    assert not torch.equal(first, second)


def test_an_epoch_of_391_batches_has_20_refreshes() -> None:
    method = prepared()
    for _ in range(2):
        method.begin_epoch(2)
        assert sum(method.batches.due(20) for _ in range(391)) == 20


def test_label_information_stays_between_refreshes() -> None:
    model, (x, y) = two_layer(), images()
    method, kept = prepared(every=2), []
    for seed in range(3):
        for p in model.parameters():
            p.data += 0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(seed)).to(p)
        method.step(model, x, y)
        kept.append(information(method).clone())
    assert set(kept[0].unique().tolist()) <= {-1.0, 0.0, 1.0}
    assert torch.equal(kept[0], kept[1])
    assert not torch.equal(kept[1], kept[2])


def test_the_refresh_is_in_evaluation_mode_and_restores_the_mode() -> None:
    model, (x, y) = batchnorm(), images(dtype=torch.float32)
    method, modes = prepared(), []
    model.register_forward_hook(lambda module, args, out: modes.append((len(out), module[1].training)))
    method.step(model, x, y)
    assert modes == [(CLASSES, False), (6, True), (6, True)]
    assert model[1].num_batches_tracked.item() == 2


def test_loss_and_gradient_run_through_both_passes() -> None:
    model, (x, y) = two_layer(), images()
    method = prepared(nu=0.0, lo=1.0, hi=1.0)
    method.begin_epoch(50)
    replaced, noise, sign = method.draw(x)
    start = (x + sign * noise).clamp(0, 1)
    out, gradients = run(method, model, x, y, noise=(replaced, noise, sign))
    z0, z1 = model(start), model(out.x_adv)
    p, q = z0.softmax(1), z1.softmax(1)
    m = (p + q) / 2
    js = (p * (p / m).log() + q * (q / m).log()).sum(1).mean() / 2
    loss = F.cross_entropy(z1, y) + 50 * js
    torch.testing.assert_close(out.loss, loss.detach(), rtol=1e-6, atol=0)
    for one, other in zip(gradients, torch.autograd.grad(loss, list(model.parameters())), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-8)


def test_noise_replaces_a_share_between_lo_and_hi() -> None:
    method, x = prepared(k=2.0), torch.zeros(64, 3, 32, 32)
    shares, signs = set(), set()
    for _ in range(20):
        replaced, noise, sign = method.draw(x)
        shares.add(replaced.float().mean().item())
        signs.add(sign.item())
        assert EPS < noise.abs().max() <= 2 * EPS
    assert 0.09 < min(shares) < max(shares) < 0.51
    assert max(shares) - min(shares) > 0.05
    assert signs == {-1, 1}


def test_without_the_ball_the_step_leaves_it() -> None:
    model, (x, y) = two_layer(), images()
    wide = prepared(k=2.0, lo=1.0, hi=1.0, clip_ball=False)
    out, _ = run(wide, model, 0.3 + 0.4 * x, y)
    assert (out.x_adv - (0.3 + 0.4 * x)).abs().max() > 1.5 * EPS


def test_two_classes_give_the_other_class_everything() -> None:
    rows = soft_targets(torch.zeros(2, 2), torch.tensor([0, 1]), 0.6, "random")
    torch.testing.assert_close(rows, torch.tensor([[0.4, 0.6], [0.6, 0.4]]))


def test_the_ramp_is_continued_after_loading() -> None:
    one, other = prepared(), prepared()
    model, (x, y) = two_layer(), images()
    one.begin_epoch(30)
    one.step(model, x, y)
    other.load_state_dict(one.state_dict())
    assert math.isclose(other.lam.item(), 30.0)
    assert other.batches.seen == 1


def test_misuse_is_refused_in_one_line() -> None:
    model, (x, y) = two_layer(), images()
    with pytest.raises(UserError, match=r"liet\.lo is 0\.6; allowed: up to liet\.hi, 0\.5"):
        create("liet", LINF, lo=0.6)
    with pytest.raises(UserError, match=r"stores an image per class; call setup"):
        create("liet", LINF).step(model, x, y)
