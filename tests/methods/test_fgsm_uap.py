"""FGSM-UAP, FGSM-CUAP, FGSM-FUAP: the checks of more-methods.md, section 3.5."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sora.methods import Crafted, Inputs, Learned

from .toys import EPS, ETA, LINF, MODEL, X, Y, prepared, run, two_layer


def update(method: Any, g: Tensor, group: list[int]) -> None:
    """What follows a batch with this gradient of the attack's loss, and none of the penalty."""
    x = torch.full_like(g, 0.5)
    start = x.clone()
    start.grad = torch.zeros_like(x)
    crafted = Crafted(x, g, kept=(torch.zeros(len(g), 2), start, torch.tensor(group)))
    learned = Learned(torch.zeros(()), torch.zeros(len(g), 2), None)
    method.update_state(Inputs(x, torch.tensor(group), ()), crafted, learned)


def test_entries_move_by_their_size_and_momentum_may_average_signs() -> None:
    method = prepared("fgsm-uap", shape=(1,), mu=0.0)
    method.u.fill_(1.0)
    seen = []
    for sign in (-1.0, -1.0, -1.0, 1.0, 1.0, 1.0):
        update(method, torch.tensor([[sign]]), [0])
        seen.append(method.u.item())
    assert seen == [0, -1, -1, 0, 1, 1]
    method = prepared("fgsm-cuap", shape=(1,), mom_of="sign")
    update(method, torch.tensor([[3.0], [-1.0], [0.5], [7.0]]), [1, 1, 1, 0])
    assert method.m.flatten().tolist() == pytest.approx([1.0, 1 / 3, 0.0])


@pytest.mark.parametrize("momentum_of", ["both", "attack"])
@pytest.mark.parametrize("name", ["fgsm-uap", "fgsm-cuap"])
def test_the_momentum_takes_the_gradient_after_the_losss_backward_pass(name: str, momentum_of: str) -> None:
    """Six updates, as the authors' code makes them: a `.grad` that both backward passes add to.

    Every other batch lacks a class, whose perturbation and momentum must not change.
    """
    model, by_hand = two_layer(), two_layer()
    method = prepared(name, momentum_of=momentum_of).double()
    u, m = method.u.clone(), method.m.clone()
    for update in range(6):
        y = Y % (3 - update % 2)
        group = y if name == "fgsm-cuap" else 0 * y
        leaf = (X + (1.25 * EPS * u[group]).clamp(-EPS, EPS)).clamp(0, 1).requires_grad_()
        z0 = by_hand(leaf)
        F.cross_entropy(z0, y, label_smoothing=0.4).backward(retain_graph=True)
        assert leaf.grad is not None
        attack = leaf.grad.clone()
        x_adv = (X + (leaf.detach() - X + EPS * attack.sign()).clamp(-EPS, EPS)).clamp(0, 1)
        by_hand.zero_grad()
        z1 = by_hand(x_adv)
        loss = F.cross_entropy(z1, y, label_smoothing=0.4) + 10 * F.mse_loss(z1, z0)
        loss.backward()
        used = leaf.grad if momentum_of == "both" else attack
        assert (used - attack).abs().max() > 1e-4 or momentum_of == "attack"
        for j in group.unique().tolist():
            m[j] = (used / used.abs().sum())[group == j].mean(0) + 0.3 * m[j]
            u[j] = (u[j] + m[j].sign()).clamp(-1, 1)
        out = method.step(model, X, y)
        for found, expected in ((out.loss, loss), (out.x_adv, x_adv), (method.u, u), (method.m, m)):
            torch.testing.assert_close(found, expected.detach(), rtol=0, atol=1e-12)
        with torch.no_grad():
            for one, other in zip(model.parameters(), by_hand.parameters(), strict=True):
                torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-12)
                one -= one.grad
                other -= other.grad
        model.zero_grad()


def test_the_group_comes_from_the_head_before_its_step() -> None:
    method = prepared("fgsm-fuap", count=5, head_lr=10.0)
    head, noisy = copy.deepcopy(method.head), (X + ETA).clamp(0, 1)
    features = MODEL[:-1](noisy).float().detach()
    group = head[0](features).argmax(1)
    shared = 1.25 * EPS * method.u[group].double()
    start = (X + (noisy - X + shared).clamp(-EPS, EPS)).clamp(0, 1)
    crafted = method.craft(MODEL, Inputs(X, Y, (ETA,)))
    assert torch.equal(crafted.kept[2], group)
    torch.testing.assert_close(crafted.kept[0], MODEL(start), rtol=0, atol=1e-7)
    loss = F.cross_entropy(head[1](head[0](features).relu()), Y, label_smoothing=0.4)
    gradients = torch.autograd.grad(loss, list(head.parameters()))
    run(method, noise=ETA)  # the head learns after the groups are assigned
    for before, after, gradient in zip(head.parameters(), method.head.parameters(), gradients, strict=True):
        clear = gradient.abs() > 1e-4  # there the first step of Adam has the size of its rate
        moved = (after - before)[clear]
        torch.testing.assert_close(moved, -10.0 * gradient[clear].sign(), rtol=1e-2, atol=0)


def test_eps_scales_the_stored_perturbation() -> None:
    method, x = prepared("fgsm-uap"), 0.2 + 0.6 * X
    method.threat = LINF.scaled(0.5)
    assert (run(method, x=x)[0].x_adv - x).abs().max() <= EPS / 2 + 1e-9
