"""FGSM-PCO: the checks of more-methods.md, section 3.6."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sora.errors import UserError
from sora.methods import create
from sora.methods.fgsm_pco import FGSMPCO, FGSMPCOHyper, difference, mixture

from .toys import CLASSES, EPS, IMAGE, LINF, assert_same, images, run, two_layer

INDEX = torch.tensor([7, 0, 3, 11, 4, 5])


def set_up(method: FGSMPCO) -> FGSMPCO:
    torch.manual_seed(0)
    method.setup(n_train=12, shape=IMAGE, batch_size=6, epochs=110, steps_per_epoch=2)
    method.begin_epoch(1)
    return method


def prepared(**options: object) -> FGSMPCO:
    method = create("fgsm-pco", LINF, **options)
    assert isinstance(method, FGSMPCO)
    return set_up(method)


def stored(method: FGSMPCO) -> Tensor:
    assert method.delta.values is not None
    return method.delta.values


@pytest.mark.parametrize(("p", "expected"), [(0.75, -0.875), (0.0, 1.0), (1.0, -1.5)])
def test_the_mixture_of_one_pixel(p: float, expected: float) -> None:
    old, new = torch.tensor([[EPS]]), torch.tensor([[-EPS]])
    mixed = mixture(torch.zeros(1, 1), old, new, torch.tensor([p]), kappa=1.5)
    assert mixed.item() == pytest.approx(expected * EPS)


def test_the_penalty_of_two_distances() -> None:
    z2 = torch.zeros(1, 1)
    z0, z1 = torch.full((1, 1), 0.2**0.5), torch.full((1, 1), 0.5**0.5)
    assert 10 * difference(z0, z1, z2).item() == pytest.approx(3)
    assert 10 * difference(z1, z0, z2).item() == pytest.approx(3)


class Certain(FGSMPCO):
    """Every prediction counts as certain."""

    def confidence(self, logits: Tensor, y: Tensor) -> Tensor:
        return torch.ones_like(y, dtype=logits.dtype)


def test_certain_predictions_without_amplification_and_penalty_make_fgsm_ep() -> None:
    model, (x, y) = two_layer(), images()
    certain = set_up(Certain(LINF, FGSMPCOHyper(kappa=1.0, lam=0.0)))
    torch.manual_seed(0)
    ep = create("fgsm-ep", LINF, lam=0.0)
    ep.setup(n_train=12, shape=IMAGE, batch_size=6, epochs=110, steps_per_epoch=2)
    for _ in range(2):
        assert_same(run(certain, model, x, y, index=INDEX), run(ep, model, x, y, index=INDEX))


@pytest.mark.parametrize("mix_graph", [False, True])
def test_loss_and_gradient_run_through_all_three_passes(mix_graph: bool) -> None:
    model, (x, y) = two_layer(), images()
    method = prepared(mix_graph=mix_graph)
    delta = stored(method)[INDEX].double()
    out, gradients = run(method, model, x, y, index=INDEX)
    rows = torch.full((6, CLASSES), 0.2, dtype=torch.float64)
    rows[torch.arange(6), y] = 0.6
    leaf = (x + delta).requires_grad_()  # not clamped
    (g,) = torch.autograd.grad(F.cross_entropy(model(leaf), rows), leaf)
    x_new = (x + (delta + EPS * g.sign()).clamp(-EPS, EPS)).clamp(0, 1)
    z0, z2 = model(x + delta), model(x_new)
    p = z0.softmax(1)[torch.arange(6), y].view(-1, 1, 1, 1)
    p = p if mix_graph else p.detach()
    mixed = (1 - p) * (x + delta) + p * (x + 1.5 * (x_new - x))
    torch.testing.assert_close(out.x_adv, mixed.detach(), rtol=0, atol=1e-7)
    z1 = model(mixed)
    apart = (z2 - z0).square().mean() - (z2 - z1).square().mean()
    loss = F.cross_entropy(z1, rows) + 10 * apart.abs()
    torch.testing.assert_close(out.loss, loss.detach(), rtol=1e-6, atol=0)
    for one, other in zip(gradients, torch.autograd.grad(loss, list(model.parameters())), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(stored(method)[INDEX], (x_new - x).float(), rtol=0, atol=1e-7)


def test_the_mixing_graph_changes_the_gradients() -> None:
    model, (x, y) = two_layer(), images()
    (out, plain), (same, through) = (
        run(prepared(mix_graph=graph), model, x, y, index=INDEX) for graph in (False, True)
    )
    assert torch.equal(out.x_adv, same.x_adv)
    assert any(not torch.allclose(a, b, rtol=1e-3) for a, b in zip(plain, through, strict=True))


def test_perturbations_are_never_refilled() -> None:
    method = prepared()
    stored(method).fill_(0.001)
    for epoch in range(1, 111):
        method.begin_epoch(epoch)
    assert (stored(method) == 0.001).all()


def test_box_mix_clamps_the_mixture() -> None:
    model, (x, y) = two_layer(), images()
    free, boxed = (run(prepared(box_mix=box), model, x, y, index=INDEX)[0].x_adv for box in (False, True))
    assert free.min() < 0
    torch.testing.assert_close(boxed, free.clamp(0, 1))


def test_misuse_is_refused_in_one_line() -> None:
    model, (x, y) = two_layer(), images()
    with pytest.raises(UserError, match=r"stores one perturbation per image; call setup"):
        create("fgsm-pco", LINF).step(model, x, y, index=INDEX)
    with pytest.raises(UserError, match=r"needs step\(\.\.\., index=\)"):
        prepared().step(model, x, y)
