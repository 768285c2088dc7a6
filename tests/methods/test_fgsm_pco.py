"""FGSM-PCO: the checks of more-methods.md, section 3.6."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from torch.nn import functional as F

from sora.methods.fgsm_pco import mixture

from .toys import EPS, INDEX, MODEL, X, Y, assert_loss, assert_same, gradient_at, prepared, rows, run


@pytest.mark.parametrize(("p", "expected"), [(0.75, -0.875), (0.0, 1.0), (1.0, -1.5)])
def test_the_mixture_of_one_pixel(p: float, expected: float) -> None:
    old, new = torch.tensor([[EPS]]), torch.tensor([[-EPS]])
    mixed = mixture(torch.zeros(1, 1), old, new, torch.tensor([p]), kappa=1.5)
    assert mixed.item() == pytest.approx(expected * EPS)


def test_certain_predictions_without_amplification_and_penalty_make_fgsm_ep() -> None:
    certain, ep = prepared("fgsm-pco", kappa=1.0, lam=0.0), prepared("fgsm-ep", lam=0.0)
    certain.delta.values.copy_(ep.delta.values)
    with mock.patch.object(certain, "confidence", lambda logits, y: torch.ones_like(y, dtype=logits.dtype)):
        for _ in range(2):
            assert_same(run(certain), run(ep))


@pytest.mark.parametrize("mix_graph", [False, True])
def test_loss_and_gradient_run_through_all_three_passes(mix_graph: bool) -> None:
    method = prepared("fgsm-pco", mix_graph=mix_graph)
    delta = method.delta.values[INDEX].double()
    ran = run(method)
    g = gradient_at(MODEL, X + delta, rows(0.6))  # not clamped
    x_new = (X + (delta + EPS * g.sign()).clamp(-EPS, EPS)).clamp(0, 1)
    z0, z2 = MODEL(X + delta), MODEL(x_new)
    p = z0.softmax(1)[torch.arange(6), Y].view(-1, 1, 1, 1)
    p = p if mix_graph else p.detach()
    mixed = (1 - p) * (X + delta) + p * (X + 1.5 * (x_new - X))
    torch.testing.assert_close(ran[0].x_adv, mixed.detach(), rtol=0, atol=1e-7)
    z1 = MODEL(mixed)
    apart = (z2 - z0).square().mean() - (z2 - z1).square().mean()
    assert_loss(ran, F.cross_entropy(z1, rows(0.6)) + 10 * apart.abs())
    torch.testing.assert_close(method.delta.values[INDEX], (x_new - X).float(), rtol=0, atol=1e-7)


def test_the_mixing_graph_changes_the_gradients() -> None:
    (out, plain), (same, through) = (run(prepared("fgsm-pco", mix_graph=graph)) for graph in (False, True))
    assert torch.equal(out.x_adv, same.x_adv)
    assert any(not torch.allclose(a, b, rtol=1e-3) for a, b in zip(plain, through, strict=True))


def test_perturbations_are_never_refilled() -> None:
    method = prepared("fgsm-pco")
    method.delta.values.fill_(0.001)
    for epoch in range(1, 111):
        method.begin_epoch(epoch)
    assert (method.delta.values == 0.001).all()


def test_box_mix_clamps_the_mixture() -> None:
    free, boxed = (run(prepared("fgsm-pco", box_mix=box))[0].x_adv for box in (False, True))
    assert free.min() < 0
    torch.testing.assert_close(boxed, free.clamp(0, 1))
