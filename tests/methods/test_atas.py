import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sora.data.augment import Augment, Transform
from sora.methods.atas import adaptive_step

from .toys import EPS, IMAGE, INDEX, LINF, MODEL, X, Y, assert_same, gradient_at, passes, prepared, run

REST = [1, 2, 6, 8, 9, 10]  # the images that are not in the batch
MOVE = Augment.parse(("crop:2", "flip")).draw(6, IMAGE[1:], torch.Generator().manual_seed(5))


def atas(epochs: int = 30, **known: Any) -> Any:
    return prepared("atas", epochs=epochs, **known)


def steps_of(u: Tensor) -> Tensor:
    return adaptive_step(u, EPS, 0.01, 0.5 * EPS, 1.75 * EPS)


@pytest.mark.parametrize(("root", "pixels"), [(0.0, 14), (0.01, 8), (0.03, 4), (9.0, 4)])
def test_step_of_a_gradient_norm(root: float, pixels: int) -> None:
    u = torch.tensor(root, dtype=torch.float64).square()
    assert steps_of(u).item() == pytest.approx(pixels / 255, rel=1e-9)


def test_first_adaptive_batch_takes_half_the_squared_norm() -> None:
    method = atas(warmup=0)
    start = (X + method.delta.values[INDEX]).clamp(0, 1)
    half = 0.5 * gradient_at(MODEL, start, Y).flatten(1).norm(dim=1).square()
    out, _ = run(method)
    torch.testing.assert_close(method.u[INDEX], half.float(), rtol=1e-5, atol=0)
    assert (method.u[REST] == 0).all()
    assert out.step_size.item() == pytest.approx(steps_of(half).mean().item(), rel=1e-5)


def test_every_image_moves_by_its_own_step() -> None:
    method = atas(warmup=0)
    method.u[INDEX] = torch.tensor([0.0, 1e-4, 9e-4, 1e-2, 1e-4, 0.0])
    start = (X + method.delta.values[INDEX]).clamp(0, 1)
    out, _ = run(method)
    steps = steps_of(method.u[INDEX]).double()
    delta = start - X + steps.view(-1, 1, 1, 1) * gradient_at(MODEL, start, Y).sign()
    assert len(steps.unique()) > 2
    torch.testing.assert_close(out.x_adv, (X + delta.clamp(-EPS, EPS)).clamp(0, 1), rtol=0, atol=1e-7)


def test_the_perturbation_is_written_back_to_its_image() -> None:
    method = atas()
    before = method.delta.values.clone()
    out, _ = run(method)
    torch.testing.assert_close(method.delta.values[INDEX].double(), out.x_adv - X, rtol=0, atol=1e-7)
    assert torch.equal(method.delta.values[REST], before[REST])


def test_resets_come_before_epochs_10_and_20_of_30_only() -> None:
    method, resets = atas(epochs=30), []
    method.u.fill_(3.0)
    for epoch in range(2, 31):
        before = method.delta.values.clone()
        method.begin_epoch(epoch)
        if not torch.equal(before, method.delta.values):
            resets.append(epoch)  # uniform noise over the whole ball
            assert 0.9 * EPS < method.delta.values.abs().max() <= EPS + 1e-6
            assert method.delta.values.std().item() == pytest.approx(EPS / math.sqrt(3), rel=0.15)
    assert resets == [10, 20]
    assert (method.u == 3.0).all()


def test_warm_up_ends_after_epoch_5_and_survives_checkpoints_of_any_version() -> None:
    method, resumed = atas(), atas()
    method.begin_epoch(5)
    run(method)
    assert (method.u == 0).all()
    method.begin_epoch(6)
    resumed.load_state_dict(method.state_dict())
    run(resumed)
    assert (resumed.u[INDEX] > 0).all()
    method, other = atas(), atas()
    method.delta.values.fill_(0.01)
    state = method.state_dict()
    state["delta"] = state.pop("delta.values")
    other.load_state_dict(state)
    assert torch.equal(other.delta.values, method.delta.values)


def test_crop_and_flip_carry_the_memory_into_the_frame_and_back() -> None:
    method = atas(canvas=(2, *MOVE.canvas_size(*IMAGE[1:])))
    before = method.delta.values.clone()
    assert before.shape == (12, 2, 8, 8)
    start = (X + MOVE.from_canvas(before[INDEX]).double()).clamp(0, 1)
    out, seen = passes(method, transform=MOVE)
    torch.testing.assert_close(seen[0][1], start, rtol=0, atol=1e-9)
    assert MOVE.top is not None
    assert MOVE.left is not None
    assert MOVE.flip is not None
    assert 0 < MOVE.flip.sum() < 6
    for i, row in enumerate(INDEX.tolist()):
        top, left = int(MOVE.top[i]), int(MOVE.left[i])
        patch = (out.x_adv - X)[i].float()
        expected = before[row].clone()
        expected[:, top : top + 4, left : left + 4] = patch.flip(2) if MOVE.flip[i] else patch
        assert torch.equal(method.delta.values[row], expected)


def test_rotation_there_and_back_hardly_shrinks_a_perturbation() -> None:
    signs = torch.rand(64, 3, 28, 28, generator=torch.Generator().manual_seed(0)).sub(0.5).sign()
    draw = Augment.parse(("rotate:10",)).draw
    moves = [draw(64, (28, 28), torch.Generator().manual_seed(seed)) for seed in (1, 2)]
    stored = moves[0].to_canvas(signs, signs)
    assert stored.abs().mean() > 0.9
    assert moves[1].from_canvas(stored).abs().mean() > 0.9


def test_an_identity_transform_is_none_and_gradient_norms_may_have_another_scale() -> None:
    assert_same(run(atas(), transform=Transform()), run(atas()))
    plain, scaled = atas(warmup=0), atas(warmup=0, grad_reference_batch=12)
    for method in (plain, scaled):
        run(method)
    torch.testing.assert_close(scaled.u, plain.u * (6 / 12) ** 2)


def test_a_gradient_norm_that_is_not_finite_is_skipped_and_counted() -> None:
    model, method = copy.deepcopy(MODEL), atas(warmup=0)
    method.u.fill_(0.25)
    nn.init.constant_(model[-1].bias, math.nan)
    run(method, model)
    assert (method.u == 0.25).all()
    assert method.skipped.item() == 6
    assert method.delta.values.isfinite().all()


def test_the_start_is_inside_the_ball_after_eps_has_shrunk() -> None:
    method = atas(warmup=0)
    method.threat = LINF.scaled(0.1)
    _, seen = passes(method)
    assert method.delta.values.abs().max() > 0.5 * EPS
    assert len(seen) == 2
    for _, inputs in seen:
        assert (inputs - X).abs().max() <= 0.1 * EPS + 1e-12
