"""FGSM-MEP, FGSM-EP, FGSM-BP: the checks of more-methods.md, section 3.3."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sora.data.augment import Augment
from sora.methods import Crafted, Inputs, Learned

from .toys import EPS, IMAGE, INDEX, LINF, MODEL, X, assert_loss, gradient_at, prepared, rows, run

each_name = pytest.mark.parametrize("name", ["fgsm-mep", "fgsm-ep", "fgsm-bp"])


def update(method: Any, g: Tensor) -> Tensor:
    """Store what follows a step of gradient g from grey images; return the perturbation of training."""
    x = torch.full_like(g, 0.5)
    start = torch.zeros_like(g)
    crafted = Crafted(LINF.projected_step(x, start, g, EPS), g, kept=(torch.zeros(len(g), 2), start))
    learned = Learned(torch.zeros(()), torch.zeros(len(g), 2), None)
    method.update_state(Inputs(x, torch.zeros(len(g)), (), torch.arange(len(g))), crafted, learned)
    return crafted.x_adv - x


def test_momentum_of_a_batch_of_four_entries_and_of_signs() -> None:
    method = prepared("fgsm-mep", shape=(1,))
    method.mom.values[0] = -3.0
    trained = update(method, torch.tensor([[3.0], [-1.0], [0.0], [0.0]]))
    assert method.mom.values[:4].flatten().tolist() == pytest.approx([0.75 - 0.9, -0.25, 0, 0])
    assert trained[0].item() == pytest.approx(EPS)
    assert method.delta.values[:4].flatten().tolist() == pytest.approx([-EPS, -EPS, 0, 0], abs=1e-7)
    method = prepared("fgsm-mep", mom_of="sign")
    run(method)
    assert method.mom.values[INDEX].abs().unique().tolist() == [1.0]
    assert (method.mom.values[1] == 0).all()


@pytest.mark.parametrize(("options", "expected"), [({}, [1, 41, 81]), ({"reset_every": 0}, [1])])
def test_refills_come_before_epochs_1_41_and_81(options: dict[str, int], expected: list[int]) -> None:
    method, refilled = prepared("fgsm-mep", **options), []
    for epoch in range(1, 111):
        method.delta.values.fill_(0.001)
        method.mom.values.fill_(1.0)
        method.begin_epoch(epoch)
        if (method.delta.values.abs() == torch.tensor(EPS)).all():
            refilled.append(epoch)
            assert (method.mom.values == 0).all()
    assert refilled == expected


@each_name
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_is_stored_stays_in_the_ball(name: str, dtype: str) -> None:
    method = prepared(name, dtype=dtype)
    stored = method.delta.values
    assert len(stored.sign().unique()) == 2
    for _ in range(4):
        out, _ = run(method)
        assert (out.x_adv - X).abs().max() <= EPS + 1e-6
        assert stored.abs().max() <= EPS * (1 + (1e-6 if dtype == "float32" else 1e-3))


def test_loss_and_gradient_run_through_both_passes() -> None:
    method = prepared("fgsm-mep")
    start = X + method.delta.values[INDEX].double()  # not clamped: images on the box leave it
    assert start.min() < 0
    ran = run(method)
    z0, z1 = MODEL(start), MODEL(ran[0].x_adv)
    assert_loss(ran, F.cross_entropy(z1, rows(0.6)) + 10 * (z1 - z0).square().mean())
    d = (start - X + EPS * gradient_at(MODEL, start, rows(0.6)).sign()).clamp(-EPS, EPS)
    torch.testing.assert_close(ran[0].x_adv, (X + d).clamp(0, 1), rtol=0, atol=1e-8)


def test_momentum_in_half_precision_keeps_numbers_that_float16_rounds_to_zero() -> None:
    method = prepared("fgsm-mep", shape=(1,), dtype="float16")
    update(method, torch.tensor([[1.0], [1e-9], [-1e-9], [0.0]]))
    assert method.mom.values[:4].flatten().sign().tolist() == [1, 1, -1, 0]


def test_aligned_perturbations_move_with_their_image() -> None:
    method = prepared("fgsm-mep", canvas=(2, 8, 8), align=True, mu=0.0)
    move = Augment.parse(("crop:2", "flip")).draw(6, IMAGE[1:], torch.Generator().manual_seed(1))
    out, _ = run(method, transform=move)
    back = move.from_canvas(method.delta.values[INDEX])
    torch.testing.assert_close(back, (out.x_adv - X).float(), rtol=0, atol=1e-7)


def test_strict_takes_the_gradient_of_the_cross_entropy_alone() -> None:
    strict, full = (run(prepared("fgsm-mep", strict=strict))[0].pert_align for strict in (True, False))
    alone = run(prepared("fgsm-mep", lam=0.0))[0].pert_align
    torch.testing.assert_close(strict, alone)
    assert full != alone
