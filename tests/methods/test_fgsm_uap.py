"""FGSM-UAP, FGSM-CUAP, FGSM-FUAP: the checks of more-methods.md, section 3.5."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sora.errors import UserError
from sora.methods import Crafted, Inputs, Learned, create
from sora.methods.fgsm_uap import FGSMUAP

from .toys import CLASSES, EPS, IMAGE, LINF, assert_same, batchnorm, images, run, two_layer, uniform


def prepared(name: str = "fgsm-uap", shape: tuple[int, ...] = IMAGE, **options: object) -> FGSMUAP:
    torch.manual_seed(0)
    method = create(name, LINF, **options)
    assert isinstance(method, FGSMUAP)
    sizes: Any = {"n_train": 12, "batch_size": 6, "epochs": 110, "steps_per_epoch": 2}
    method.setup(shape=shape, classes=CLASSES, model=two_layer(), **sizes)
    return method


def stored(method: FGSMUAP) -> tuple[Tensor, Tensor]:
    """The perturbations in multiples of their size, and the momentum."""
    assert method.u is not None
    assert method.m is not None
    return method.u, method.m


def update(method: FGSMUAP, g: Tensor, group: list[int]) -> None:
    """What follows a batch with this gradient of the attack's loss, and none of the penalty."""
    x = torch.full_like(g, 0.5)
    start = x.clone()
    start.grad = torch.zeros_like(x)
    crafted = Crafted(x, g, kept=(torch.zeros(len(g), 2), start, torch.tensor(group)))
    learned = Learned(torch.zeros(()), torch.zeros(len(g), 2), None)
    method.update_state(Inputs(x, torch.tensor(group), ()), crafted, learned)


def test_entries_move_by_their_size_and_stay_within_it() -> None:
    method = prepared(shape=(1,), mu=0.0)
    u, _ = stored(method)
    u.fill_(1.0)
    seen = []
    for sign in (-1.0, -1.0, -1.0, 1.0, 1.0, 1.0):
        update(method, torch.tensor([[sign]]), [0])
        seen.append(u.item())
    assert seen == [0, -1, -1, 0, 1, 1]


@pytest.mark.parametrize("name", ["fgsm-uap", "fgsm-cuap"])
def test_the_start_is_zero_or_eps_away_before_clamping(name: str) -> None:
    model, (x, y) = two_layer(), images()
    x, starts = 0.2 + 0.6 * x, []
    method = prepared(name)
    model.register_forward_pre_hook(lambda module, args: starts.append(args[0].detach()))
    for _ in range(4):
        method.step(model, x, y)
        assert set(stored(method)[0].unique().tolist()) <= {-1.0, 0.0, 1.0}
        offset = ((starts[-2] - x) / EPS).round(decimals=5).unique().tolist()
        assert set(offset) <= {-1.0, 0.0, 1.0}


def test_momentum_of_two_images_of_one_class() -> None:
    method = prepared("fgsm-cuap", shape=(1,))
    _, m = stored(method)
    m.fill_(1.0)
    update(method, torch.tensor([[3.0], [-1.0]]), [1, 1])
    assert m.flatten().tolist() == pytest.approx([1.0, 0.25 + 0.3, 1.0])


def test_momentum_of_signs_averages_signs() -> None:
    method = prepared("fgsm-cuap", shape=(1,), mom_of="sign")
    update(method, torch.tensor([[3.0], [-1.0], [0.5], [7.0]]), [1, 1, 1, 0])
    assert stored(method)[1].flatten().tolist() == pytest.approx([1.0, 1 / 3, 0.0])


def test_by_class_is_universal_on_a_batch_of_one_class() -> None:
    model, (x, _) = two_layer(), images()
    y = torch.full((6,), 1)
    one, classes = prepared(), prepared("fgsm-cuap")
    (u, m), (us, ms) = stored(one), stored(classes)
    us[1] = u[0]
    for _ in range(2):
        assert_same(run(one, model, x, y), run(classes, model, x, y))
    assert torch.equal(us[1], u[0])
    assert torch.equal(ms[1], m[0])


@pytest.mark.parametrize("name", ["fgsm-uap", "fgsm-cuap"])
def test_lambda_zero_and_hard_labels_make_fgsm_rs_from_the_shared_perturbation(name: str) -> None:
    model, (x, y) = two_layer(), images()
    method = prepared(name, lam=0.0, nu=0.0)
    group = y if name == "fgsm-cuap" else torch.zeros_like(y)
    noise = (1.25 * EPS * stored(method)[0][group].double()).clamp(-EPS, EPS)
    expected = run(create("fgsm-rs", LINF, alpha=1.0), model, x, y, noise=noise)
    assert_same(run(method, model, x, y), expected)


def test_a_class_not_in_the_batch_keeps_everything_bit_for_bit() -> None:
    model, (x, y) = two_layer(), images()
    method = prepared("fgsm-cuap")
    run(method, model, x, y)
    before = [tensor.clone() for tensor in stored(method)]
    run(method, model, x, y % 2)
    for old, new in zip(before, stored(method), strict=True):
        assert torch.equal(old[2], new[2])
        assert not torch.equal(old[0], new[0])


def test_loss_and_gradient_run_through_both_passes() -> None:
    model, (x, y) = two_layer(), images()
    method = prepared("fgsm-cuap")
    start = (x + EPS * stored(method)[0][y].double()).clamp(0, 1)
    out, gradients = run(method, model, x, y)
    z0, z1 = model(start), model(out.x_adv)
    loss = F.cross_entropy(z1, y, label_smoothing=0.4) + 10 * (z1 - z0).square().mean()
    torch.testing.assert_close(out.loss, loss.detach(), rtol=1e-6, atol=0)
    for one, other in zip(gradients, torch.autograd.grad(loss, list(model.parameters())), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("name", ["fgsm-uap", "fgsm-cuap", "fgsm-fuap"])
def test_a_zero_gradient_changes_nothing_and_is_counted(name: str) -> None:
    model, (x, y) = two_layer(), images()
    nn.init.zeros_(model[-1].weight)
    method = prepared(name)
    before = [tensor.clone() for tensor in stored(method)]
    out, _ = run(method, model, x, y)
    assert out.extras["skipped"].item() == 1
    for old, new in zip(before, stored(method), strict=True):
        assert torch.equal(old, new)


@pytest.mark.parametrize("momentum_of", ["both", "attack"])
@pytest.mark.parametrize("name", ["fgsm-uap", "fgsm-cuap"])
def test_the_momentum_takes_the_gradient_after_the_losss_backward_pass(name: str, momentum_of: str) -> None:
    """Six updates, as the authors' code makes them: a `.grad` that both backward passes add to."""
    model, (x, y) = two_layer(), images()
    method = prepared(name, momentum_of=momentum_of).double()
    group = y if name == "fgsm-cuap" else torch.zeros_like(y)
    u, m = (tensor.clone() for tensor in stored(method))
    by_hand, count = copy.deepcopy(model), torch.bincount(group, minlength=len(u)).view(-1, 1, 1, 1)
    for _ in range(6):
        leaf = (x + (1.25 * EPS * u[group]).clamp(-EPS, EPS)).clamp(0, 1).requires_grad_()
        z0 = by_hand(leaf)
        F.cross_entropy(z0, y, label_smoothing=0.4).backward(retain_graph=True)
        assert leaf.grad is not None
        attack = leaf.grad.clone()
        x_adv = (x + (leaf.detach() - x + EPS * attack.sign()).clamp(-EPS, EPS)).clamp(0, 1)
        by_hand.zero_grad()
        z1 = by_hand(x_adv)
        (F.cross_entropy(z1, y, label_smoothing=0.4) + 10 * F.mse_loss(z1, z0)).backward()
        used = leaf.grad if momentum_of == "both" else attack
        for j in group.unique().tolist():
            m[j] = (used / used.abs().sum())[group == j].sum(0) / count[j] + 0.3 * m[j]
            u[j] = (u[j] + m[j].sign()).clamp(-1, 1)
        out = method.step(model, x, y)
        torch.testing.assert_close(out.x_adv, x_adv, rtol=0, atol=1e-12)
        for found, expected in zip(stored(method), (u, m), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        assert (used - attack).abs().max() > 1e-4 or momentum_of == "attack"
        with torch.no_grad():
            for one, other in zip(model.parameters(), by_hand.parameters(), strict=True):
                torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-12)
                one -= one.grad
                other -= other.grad
        model.zero_grad()


def test_the_group_comes_from_the_head_before_its_step() -> None:
    model, (x, y) = two_layer(), images()
    method = prepared("fgsm-fuap", count=5, head_lr=10.0)
    head, noise = copy.deepcopy(method.head), uniform(x)
    noisy = (x + noise).clamp(0, 1)
    features = model[:-1](noisy).float().detach()
    group = head[0](features).argmax(1)
    crafted = method.craft(model, Inputs(x, y, (noise,)))
    assert torch.equal(crafted.kept[2], group)
    shared = 1.25 * EPS * stored(method)[0][group].double()
    start = (x + (noisy - x + shared).clamp(-EPS, EPS)).clamp(0, 1)
    torch.testing.assert_close(crafted.kept[0], model(start), rtol=0, atol=1e-7)
    loss = F.cross_entropy(head[1](head[0](features).relu()), y, label_smoothing=0.4)
    method.step(model, x, y, noise=noise)  # the head learns after the groups are assigned
    for before, after, gradient in zip(
        head.parameters(),
        method.head.parameters(),
        torch.autograd.grad(loss, list(head.parameters())),
        strict=True,
    ):  # the first step of Adam has the size of its rate wherever the gradient is not tiny
        clear = gradient.abs() > 1e-4
        moved = (after - before)[clear]
        torch.testing.assert_close(moved, -10.0 * gradient[clear].sign(), rtol=1e-2, atol=0)


def test_the_pass_for_the_features_updates_batchnorm() -> None:
    x, y = images(dtype=torch.float32)
    passes = []
    for name in ("fgsm-cuap", "fgsm-fuap"):
        model, method = batchnorm(), create(name, LINF)
        sizes: Any = {"n_train": 6, "batch_size": 6, "epochs": 1, "steps_per_epoch": 1}
        method.setup(shape=IMAGE, classes=CLASSES, model=model, **sizes)
        method.step(model, x, y)
        passes.append(model[1].num_batches_tracked.item())
    assert passes == [2, 3]


def test_the_head_stays_finite_when_features_are_not() -> None:
    model, (x, y) = two_layer(), images()
    nn.init.constant_(model[1].bias, torch.nan)
    method = prepared("fgsm-fuap")
    method.step(model, x, y)
    assert all(p.isfinite().all() for p in method.head.parameters())


def test_eps_scales_the_stored_perturbation() -> None:
    model, (x, y) = two_layer(), images()
    method = prepared()
    method.threat = LINF.scaled(0.5)
    out, _ = run(method, model, 0.2 + 0.6 * x, y)
    assert (out.x_adv - (0.2 + 0.6 * x)).abs().max() <= EPS / 2 + 1e-9


def test_misuse_is_refused_in_one_line() -> None:
    model, (x, y) = two_layer(), images()
    sizes: Any = {"n_train": 6, "shape": IMAGE, "batch_size": 6, "epochs": 1, "steps_per_epoch": 1}
    with pytest.raises(UserError, match=r"stores shared perturbations; call setup"):
        create("fgsm-uap", LINF).step(model, x, y)
    with pytest.raises(UserError, match=r"groups=class needs the number of classes; call setup"):
        create("fgsm-cuap", LINF).setup(**sizes)
    with pytest.raises(UserError, match=r"groups=features needs the model; call setup"):
        create("fgsm-fuap", LINF).setup(**sizes, classes=3)
    with pytest.raises(UserError, match="needs a model whose last layer is linear"):
        create("fgsm-fuap", LINF).setup(**sizes, classes=3, model=nn.Flatten())
