"""FGSM-MEP, FGSM-EP, FGSM-BP: the checks of more-methods.md, section 3.3."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sora._passes import mse
from sora.data.augment import Augment
from sora.errors import UserError
from sora.methods import Crafted, Inputs, Learned, create
from sora.methods.fgsm_mep import FGSMMEP

from .toys import CLASSES, EPS, IMAGE, LINF, assert_same, images, run, two_layer

N = 12
INDEX = torch.tensor([7, 0, 3, 11, 4, 5])


def prepared(name: str = "fgsm-mep", shape: tuple[int, ...] = IMAGE, **options: object) -> FGSMMEP:
    torch.manual_seed(0)
    method = create(name, LINF, **options)
    assert isinstance(method, FGSMMEP)
    canvas = cast("tuple[int, ...] | None", (2, 8, 8) if options.get("align") else None)
    method.setup(n_train=N, shape=shape, batch_size=6, epochs=110, steps_per_epoch=2, canvas=canvas)
    method.begin_epoch(1)
    return method


def stored(method: FGSMMEP) -> Tensor:
    assert method.delta.values is not None
    return method.delta.values


def momentum(method: FGSMMEP) -> Tensor:
    assert method.mom is not None
    assert method.mom.values is not None
    return method.mom.values


def inner_images() -> tuple[Tensor, Tensor]:
    """A batch that stays inside the box when moved by eps."""
    x, y = images()
    return 0.2 + 0.6 * x, y


def test_without_momentum_mep_is_ep() -> None:
    model, (x, y) = two_layer(), images()
    mep, ep = prepared(mu=0.0), prepared("fgsm-ep")
    for _ in range(2):
        assert_same(run(mep, model, x, y, index=INDEX), run(ep, model, x, y, index=INDEX))
    assert torch.equal(stored(mep), stored(ep))


def update(method: FGSMMEP, g: Tensor) -> Tensor:
    """Store what follows a step of gradient g from grey images; return the perturbation of training."""
    x = torch.full_like(g, 0.5)
    start = torch.zeros_like(g)
    crafted = Crafted(LINF.projected_step(x, start, g, EPS), g, kept=(torch.zeros(len(g), 2), start))
    learned = Learned(torch.zeros(()), torch.zeros(len(g), 2), None)
    method.update_state(Inputs(x, torch.zeros(len(g)), (), torch.arange(len(g))), crafted, learned)
    return crafted.x_adv - x


def test_momentum_of_a_batch_of_four_entries() -> None:
    method = prepared(shape=(1,))
    momentum(method)[0] = -3.0
    trained = update(method, torch.tensor([[3.0], [-1.0], [0.0], [0.0]]))
    assert momentum(method)[:4].flatten().tolist() == pytest.approx([0.75 - 0.9, -0.25, 0, 0])
    assert trained[0].item() == pytest.approx(EPS)
    assert stored(method)[:4].flatten().tolist() == pytest.approx([-EPS, -EPS, 0, 0], abs=1e-7)


def test_momentum_of_signs_adds_signs() -> None:
    model, (x, y) = two_layer(), images()
    method = prepared(mom_of="sign")
    run(method, model, x, y, index=INDEX)
    assert momentum(method)[INDEX].abs().unique().tolist() == [1.0]
    assert (momentum(method)[1] == 0).all()


def test_lambda_zero_and_hard_labels_make_fgsm_rs_from_the_stored_perturbation() -> None:
    model, (x, y) = two_layer(), inner_images()
    method = prepared(lam=0.0, phi=1.0)
    noise = stored(method)[INDEX].double()
    expected = run(create("fgsm-rs", LINF, alpha=1.0), model, x, y, noise=noise)
    assert_same(run(method, model, x, y, index=INDEX), expected)


def test_the_regulariser_of_two_logits() -> None:
    a, b = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[0.0, 1.0, 0.0]])
    assert mse(a, b).item() == pytest.approx(2 / 3)
    assert 10 * mse(a.half(), b.half()).item() == pytest.approx(6.666667, abs=1e-6)


def test_refills_come_before_epochs_1_41_and_81() -> None:
    method, refilled = prepared(), []
    for epoch in range(1, 111):
        stored(method).fill_(0.001)
        momentum(method).fill_(1.0)
        method.begin_epoch(epoch)
        if (stored(method).abs() == torch.tensor(EPS)).all():
            refilled.append(epoch)
            assert (momentum(method) == 0).all()
    assert refilled == [1, 41, 81]


def test_reset_every_zero_refills_once() -> None:
    method = prepared(reset_every=0)
    stored(method).fill_(0.001)
    method.begin_epoch(41)
    assert (stored(method) == 0.001).all()


@pytest.mark.parametrize("name", ["fgsm-mep", "fgsm-ep", "fgsm-bp"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_is_stored_stays_in_the_ball(name: str, dtype: str) -> None:
    model, (x, y) = two_layer(), images()
    method = prepared(name, dtype=dtype)
    assert len(stored(method).sign().unique()) == 2
    for _ in range(4):
        out, _ = run(method, model, x, y, index=INDEX)
        assert (out.x_adv - x).abs().max() <= EPS + 1e-6
        assert stored(method).abs().max() <= EPS * (1 + (1e-6 if dtype == "float32" else 1e-3))


def test_loss_and_gradient_run_through_both_passes() -> None:
    model, (x, y) = two_layer(), images()
    method = prepared()
    start = x + stored(method)[INDEX].double()  # not clamped: images on the box leave it
    assert start.min() < 0
    out, gradients = run(method, model, x, y, index=INDEX)
    rows = torch.full((6, CLASSES), 0.2, dtype=torch.float64)
    rows[torch.arange(6), y] = 0.6
    z0, z1 = model(start), model(out.x_adv)
    loss = F.cross_entropy(z1, rows) + 10 * (z1 - z0).square().mean()
    torch.testing.assert_close(out.loss, loss.detach())
    expected = torch.autograd.grad(loss, list(model.parameters()))
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other)
    g = torch.autograd.grad(F.cross_entropy(model(leaf := start.clone().requires_grad_()), rows), leaf)[0]
    d = (start - x + EPS * g.sign()).clamp(-EPS, EPS)
    torch.testing.assert_close(out.x_adv, (x + d).clamp(0, 1), rtol=0, atol=1e-8)


def test_bp_stores_rows_and_those_beyond_the_batch_stay() -> None:
    model, (x, y) = two_layer(), images()
    method = prepared("fgsm-bp")
    before = stored(method).clone()
    assert before.shape == (7, *IMAGE)
    out, _ = run(method, model, x[:4], y[:4])
    torch.testing.assert_close(stored(method)[:4], (out.x_adv - x[:4]).float(), rtol=0, atol=1e-7)
    assert torch.equal(stored(method)[4:], before[4:])


@pytest.mark.parametrize("name", ["fgsm-mep", "fgsm-ep", "fgsm-bp"])
def test_a_zero_gradient_changes_nothing_and_is_counted(name: str) -> None:
    model, (x, y) = two_layer(), images()
    nn.init.zeros_(model[-1].weight)
    method = prepared(name)
    before = stored(method).clone()
    out, _ = run(method, model, x, y, index=INDEX)
    assert out.extras["skipped"].item() == 1
    assert torch.equal(stored(method), before)


def test_momentum_in_half_precision_keeps_numbers_that_float16_rounds_to_zero() -> None:
    method = prepared(shape=(1,), dtype="float16")
    update(method, torch.tensor([[1.0], [1e-9], [-1e-9], [0.0]]))
    assert momentum(method)[:4].flatten().sign().tolist() == [1, 1, -1, 0]


def test_aligned_perturbations_move_with_their_image() -> None:
    model, (x, y) = two_layer(), images()
    method = prepared(align=True, mu=0.0)
    move = Augment.parse(("crop:2", "flip")).draw(6, IMAGE[1:], torch.Generator().manual_seed(1))
    out, _ = run(method, model, x, y, index=INDEX, transform=move)
    back = move.from_canvas(stored(method)[INDEX])
    torch.testing.assert_close(back, (out.x_adv - x).float(), rtol=0, atol=1e-7)


def test_strict_takes_the_gradient_of_the_cross_entropy_alone() -> None:
    model, (x, y) = two_layer(), images()
    aligned = [
        run(prepared(strict=strict), model, x, y, index=INDEX)[0].pert_align for strict in (True, False)
    ]
    alone = run(prepared(lam=0.0), model, x, y, index=INDEX)[0].pert_align
    torch.testing.assert_close(aligned[0], alone)
    assert aligned[1] != alone


def test_misuse_is_refused_in_one_line() -> None:
    model, (x, y) = two_layer(), images()
    with pytest.raises(UserError, match=r"stores one perturbation per image; call setup"):
        create("fgsm-mep", LINF).step(model, x, y, index=INDEX)
    with pytest.raises(UserError, match=r"needs step\(\.\.\., index=\)"):
        prepared().step(model, x, y)
    with pytest.raises(UserError, match="7 rows are stored, the batch has 8"):
        prepared("fgsm-bp").step(model, *images(8))
    with pytest.raises(UserError, match=r"fgsm-mep\.mu is 0\.3; allowed with memory=row: 0"):
        create("fgsm-bp", LINF, mu=0.3)
    with pytest.raises(UserError, match=r"fgsm-mep\.align is true; allowed with memory=row: false"):
        create("fgsm-bp", LINF, align=True)
