"""TDAT: the checks of more-methods.md, section 3.8."""

import pytest
import torch
from torch.nn import functional as F

from sora.methods import Crafted, Inputs, Learned
from sora.methods.tdat import weighted_distance

from .toys import EPS, MODEL, X, Y, assert_loss, prepared, run


@pytest.mark.parametrize(
    ("relax", "expected"),
    [
        ("tan", {1: 0.934445, 56: 0.327781, 84: 0.150303, 85: 0.15, 110: 0.15}),
        ("tanh", {1: 0.456956, 56: 0.277270, 83: 0.15, 110: 0.15}),
    ],
)
def test_the_target_of_the_true_class_falls_over_the_epochs(relax: str, expected: dict[int, float]) -> None:
    method = prepared("tdat", relax=relax)
    for epoch, gam in expected.items():
        method.begin_epoch(epoch)
        assert method.gam.item() == pytest.approx(gam, abs=1e-6)
    method.begin_epoch(82)
    assert method.gam.item() > 0.15


def test_targets_at_015_and_the_penalty_of_one_example() -> None:
    method, y = prepared("tdat", beta=0.0), torch.tensor([0])
    logits = torch.randn(1, 10)
    parts = -logits.log_softmax(1)[0]
    inner = 0.15 * parts[0] + 0.094444 * parts[1:].sum()
    outer = 0.235 * parts[0] + 0.085 * parts[1:].sum()
    assert method.attack_loss(logits, y).item() == pytest.approx(inner.item(), rel=1e-4)
    assert method.train_loss(logits, y).item() == pytest.approx(outer.item(), rel=1e-5)
    z0, z1, p = torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2), torch.tensor([0.5])
    assert 0.6 * weighted_distance(z0, z1, p, squared=True).item() == pytest.approx(6.931759, abs=1e-5)
    assert 0.6 * weighted_distance(z0, z1, p, squared=False).item() == pytest.approx(1.386352, abs=1e-6)
    for squared in (True, False):  # equal logits have a finite gradient in both norms
        z = torch.ones(2, 3, requires_grad=True)
        penalty = weighted_distance(z, torch.ones(2, 3), torch.full((2,), 0.5), squared=squared)
        assert (torch.autograd.grad(penalty, z)[0] == 0).all()


def test_momentum_averages_the_old_start_and_the_new_perturbation() -> None:
    method = prepared("tdat", mo=0.75, shape=(1,))
    x = torch.full((1, 1), 0.5)
    old = torch.full_like(x, EPS)
    crafted = Crafted(x - EPS, torch.ones_like(x), kept=(torch.zeros(1, 2), old))
    learned = Learned(torch.zeros(()), torch.zeros(1, 2), None)
    method.update_state(Inputs(x, torch.zeros(1), ()), crafted, learned)
    assert method.delta.values[0].item() == pytest.approx(0.5 * EPS, rel=1e-5)


@pytest.mark.parametrize("reference", ["start", "clean"])
@pytest.mark.parametrize("detach", [False, True])
def test_loss_and_gradient_run_through_both_passes(reference: str, detach: bool) -> None:
    method = prepared("tdat", reference=reference, detach_p=detach)
    start = X + method.delta.values[:6].double()
    assert start.min() < 0  # not clamped
    ran, gam = run(method), method.gam.double().item()
    z0, z1 = MODEL(start if reference == "start" else X), MODEL(ran[0].x_adv)
    p = z0.softmax(1)[torch.arange(6), Y]
    p = p.detach() if detach else p
    loss = F.cross_entropy(z1, Y, label_smoothing=1 - gam)
    assert_loss(ran, loss + 0.6 * ((z0 - z1).square().sum(1) * torch.tanh(1.0000001 - p)).mean())
