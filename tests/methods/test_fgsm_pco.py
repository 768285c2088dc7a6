"""FGSM-PCO: the checks of more-methods.md, section 3.6."""

import pytest
import torch
from torch.nn import functional as F

from .toys import EPS, INDEX, MODEL, X, Y, assert_loss, gradient_at, prepared, rows, run


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


def test_perturbations_are_never_refilled_and_box_mix_clamps_the_mixture() -> None:
    method = prepared("fgsm-pco")
    method.delta.values.fill_(0.001)
    for epoch in range(1, 111):
        method.begin_epoch(epoch)
    assert (method.delta.values == 0.001).all()
    free, boxed = (run(prepared("fgsm-pco", box_mix=box))[0].x_adv for box in (False, True))
    assert free.min() < 0
    torch.testing.assert_close(boxed, free.clamp(0, 1))
