"""TDAT: the checks of more-methods.md, section 3.8."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sora.errors import UserError
from sora.methods import Crafted, Inputs, Learned, create
from sora.methods.tdat import TDAT, weighted_distance

from .toys import CLASSES, EPS, IMAGE, LINF, assert_same, images, run, two_layer


def prepared(name: str = "tdat", shape: tuple[int, ...] = IMAGE, **options: object) -> TDAT:
    torch.manual_seed(0)
    method = create(name, LINF, **options)
    method.setup(n_train=12, shape=shape, batch_size=6, epochs=110, steps_per_epoch=2)
    if name == "tdat":
        method.begin_epoch(1)
    return method  # type: ignore[return-value]


def stored(method: TDAT) -> Tensor:
    assert method.delta.values is not None
    return method.delta.values


@pytest.mark.parametrize(
    ("relax", "expected"),
    [
        ("tan", {1: 0.934445, 56: 0.327781, 84: 0.150303, 85: 0.15, 110: 0.15}),
        ("tanh", {1: 0.456956, 56: 0.277270, 83: 0.15, 110: 0.15}),
    ],
)
def test_the_target_of_the_true_class_falls_over_the_epochs(relax: str, expected: dict[int, float]) -> None:
    method = prepared(relax=relax)
    for epoch, gam in expected.items():
        method.begin_epoch(epoch)
        assert method.gam.item() == pytest.approx(gam, abs=1e-6)
    method.begin_epoch(82)
    assert method.gam.item() > 0.15


def test_targets_of_attack_and_update_at_015() -> None:
    method, y = prepared(beta=0.0), torch.tensor([0])
    logits = torch.randn(1, 10)
    parts = -logits.log_softmax(1)[0]
    inner = 0.15 * parts[0] + 0.094444 * parts[1:].sum()
    outer = 0.235 * parts[0] + 0.085 * parts[1:].sum()
    assert method.attack_loss(logits, y).item() == pytest.approx(inner.item(), rel=1e-4)
    assert method.train_loss(logits, y).item() == pytest.approx(outer.item(), rel=1e-5)


def test_the_penalty_of_one_example() -> None:
    z0, z1, p = torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2), torch.tensor([0.5])
    assert 0.6 * weighted_distance(z0, z1, p, squared=True).item() == pytest.approx(6.931759, abs=1e-5)
    assert 0.6 * weighted_distance(z0, z1, p, squared=False).item() == pytest.approx(1.386352, abs=1e-6)


def test_equal_logits_have_a_finite_gradient_in_both_norms() -> None:
    for squared in (True, False):
        z = torch.ones(2, 3, requires_grad=True)
        penalty = weighted_distance(z, torch.ones(2, 3), torch.full((2,), 0.5), squared=squared)
        assert (torch.autograd.grad(penalty, z)[0] == 0).all()


def test_hard_labels_and_no_penalty_make_fgsm_bp() -> None:
    model, (x, y) = two_layer(), images()
    method, bp = prepared(lam=0.0, gam_min=1.0), prepared("fgsm-bp", lam=0.0, phi=1.0)
    for _ in range(2):
        assert_same(run(method, model, x, y), run(bp, model, x, y))
    torch.testing.assert_close(stored(method), stored(bp), rtol=0, atol=1e-7)


def test_momentum_averages_the_old_start_and_the_new_perturbation() -> None:
    method = prepared(mo=0.75, shape=(1,))
    x = torch.full((1, 1), 0.5)
    old = torch.full_like(x, EPS)
    crafted = Crafted(x - EPS, torch.ones_like(x), kept=(torch.zeros(1, 2), old))
    learned = Learned(torch.zeros(()), torch.zeros(1, 2), None)
    method.update_state(Inputs(x, torch.zeros(1), ()), crafted, learned)
    assert stored(method)[0].item() == pytest.approx(0.5 * EPS, rel=1e-5)


@pytest.mark.parametrize("reference", ["start", "clean"])
@pytest.mark.parametrize("detach", [False, True])
def test_loss_and_gradient_run_through_both_passes(reference: str, detach: bool) -> None:
    model, (x, y) = two_layer(), images()
    method = prepared(reference=reference, detach_p=detach)
    start = x + stored(method)[:6].double()
    assert start.min() < 0  # not clamped
    out, gradients = run(method, model, x, y)
    gam = method.gam.double().item()
    rows = torch.full((6, CLASSES), (1 - gam) / CLASSES, dtype=torch.float64)
    rows[torch.arange(6), y] += gam
    z0, z1 = model(start if reference == "start" else x), model(out.x_adv)
    p = z0.softmax(1)[torch.arange(6), y]
    p = p.detach() if detach else p
    loss = F.cross_entropy(z1, rows)
    loss = loss + 0.6 * ((z0 - z1).square().sum(1) * torch.tanh(1.0000001 - p)).mean()
    torch.testing.assert_close(out.loss, loss.detach(), rtol=1e-6, atol=0)
    for one, other in zip(gradients, torch.autograd.grad(loss, list(model.parameters())), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-8)


def test_rows_beyond_the_batch_stay() -> None:
    model, (x, y) = two_layer(), images()
    method = prepared()
    before = stored(method).clone()
    out, _ = run(method, model, x[:4], y[:4])
    torch.testing.assert_close(stored(method)[:4], (out.x_adv - x[:4]).float(), rtol=0, atol=1e-7)
    assert torch.equal(stored(method)[4:], before[4:])


def test_misuse_is_refused_in_one_line() -> None:
    model, (x, y) = two_layer(), images()
    with pytest.raises(UserError, match=r"stores one perturbation per row; call setup"):
        create("tdat", LINF).step(model, x, y)
    with pytest.raises(UserError, match=r"tdat has targets of its own \(tdat\.gam_min\)"):
        create("tdat", LINF, smoothing=0.1)
