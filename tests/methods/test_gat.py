"""GAT: the checks of more-methods.md, section 3.1."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sora.methods import create
from sora.methods.gat import GAT, distance

from .toys import EPS, LINF, assert_same_gradients, batchnorm, images, run, two_layer

SIGNS = (torch.rand(6, 2, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) - 0.5).sign()


def gat(epochs: int = 100, **hyper: object) -> GAT:
    method = create("gat", LINF, **hyper)
    assert isinstance(method, GAT)
    method.setup(epochs=epochs)
    method.begin_epoch(1)
    return method


def test_lambda_zero_trains_like_benign_on_nuats_attack() -> None:
    model, (x, y), noise = two_layer(), images(), SIGNS * EPS / 2
    out, gradients = run(gat(lam=0), model, x, y, noise=noise)
    assert_same_gradients(gradients, run(create("benign", LINF), model, x, y)[1])
    nuat = run(create("nuat", LINF, lam=0), model, x, y, noise=noise)[0]
    torch.testing.assert_close(out.x_adv, nuat.x_adv, rtol=0, atol=1e-12)


def test_distance_of_two_logits_and_its_largest_value() -> None:
    p, q = (torch.tensor([row]).softmax(1) for row in ([1.0, 0.0, 0.0], [0.0, 1.0, 0.0]))
    assert distance(p, q).item() == pytest.approx(0.265247, abs=1e-6)
    assert 10 * distance(p, q).item() == pytest.approx(2.652473, abs=1e-5)
    far = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    assert distance(*far).item() == 2.0


def attacks(lam: float, batches: int = 3, **hyper: object) -> list[Tensor]:
    model, (x, y), method = two_layer(), images(), gat(lam=lam, **hyper)
    return [run(method, model, x, y, noise=SIGNS * EPS / 2)[0].x_adv for _ in range(batches)]


def test_only_every_other_attack_depends_on_lambda_from_an_epochs_second_batch() -> None:
    for batch, (one, other) in enumerate(zip(attacks(0.0), attacks(1000.0), strict=True), start=1):
        assert torch.equal(one, other) == (batch != 2)


def test_without_alternating_every_attack_depends_on_lambda() -> None:
    for one, other in zip(attacks(0.0), attacks(1000.0, alternate=False), strict=True):
        assert not torch.equal(one, other)


def test_an_epoch_starts_with_a_batch_that_leaves_the_distance_out() -> None:
    model, (x, y), method = two_layer(), images(), gat(lam=1000.0)
    run(method, model, x, y, noise=SIGNS * EPS / 2)
    method.begin_epoch(2)
    out = run(method, model, x, y, noise=SIGNS * EPS / 2)[0]
    assert torch.equal(out.x_adv, attacks(0.0, 1)[0])


def test_lambda_is_boosted_from_epoch_87_of_100() -> None:
    method, values = gat(), []
    for epoch in (86, 87):
        method.begin_epoch(epoch)
        values.append(method.lam.item())
    assert values == [10.0, 40.0]


def test_loss_is_clean_cross_entropy_plus_the_distance_through_both_passes() -> None:
    model, (x, y) = two_layer(), images()
    out, gradients = run(gat(), model, x, y)
    clean, adversarial = model(x), model(out.x_adv)
    change = (clean.softmax(1) - adversarial.softmax(1)).square().sum(1).mean()
    loss = nn.functional.cross_entropy(clean, y) + 10 * change
    torch.testing.assert_close(out.loss, loss.detach())
    for one, other in zip(gradients, torch.autograd.grad(loss, list(model.parameters())), strict=True):
        torch.testing.assert_close(one, other)
    assert out.pert_align.isnan()


def test_only_the_attack_pass_runs_in_evaluation_mode() -> None:
    model, (x, y) = batchnorm(), images(dtype=torch.float32)
    modes = []
    model.register_forward_hook(lambda module, args, out: modes.append(module.training))
    gat().step(model, x, y)
    assert modes == [True, False, True, True]


def test_the_noise_is_signs_of_half_eps() -> None:
    (noise,) = gat().draw(torch.zeros(4, 2, 4, 4))
    torch.testing.assert_close(noise.abs(), torch.full_like(noise, EPS / 2))
    assert 0.3 < (noise > 0).float().mean() < 0.7


def test_all_parts_of_a_batch_have_the_attack_of_the_batch() -> None:
    model, (x, y), noise = two_layer(), images(), SIGNS * EPS / 2
    whole, parts = gat(lam=1000.0), gat(lam=1000.0)
    for _ in range(3):
        expected = run(whole, model, x, y, noise=noise)[0].x_adv
        found = []
        for ends, rows in ((False, slice(0, 3)), (True, slice(3, 6))):
            parts.ends_batch = ends
            found.append(run(parts, model, x[rows], y[rows], noise=noise[rows])[0].x_adv)
        torch.testing.assert_close(torch.cat(found), expected, rtol=0, atol=1e-12)
