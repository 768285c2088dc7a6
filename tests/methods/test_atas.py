from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from sora.data.augment import Augment, Transform
from sora.errors import UserError
from sora.methods import create
from sora.methods.atas import ATAS, adaptive_step

from .toys import EPS, IMAGE, LINF, assert_same, batchnorm, gradient_at, images, run, two_layer

N = 12


def atas(epochs: int = 30, canvas: tuple[int, ...] | None = None, **hyper: object) -> ATAS:
    torch.manual_seed(0)
    method = create("atas", LINF, **hyper)
    assert isinstance(method, ATAS)
    method.setup(n_train=N, shape=IMAGE, batch_size=6, epochs=epochs, steps_per_epoch=2, canvas=canvas)
    method.begin_epoch(1)
    return method


def delta_of(method: ATAS) -> Tensor:
    assert method.delta.values is not None
    return method.delta.values


index = torch.tensor([7, 0, 3, 11, 4, 5])


@pytest.mark.parametrize(("root", "pixels"), [(0.0, 14), (0.01, 8), (0.03, 4), (9.0, 4)])
def test_step_of_a_gradient_norm(root: float, pixels: int) -> None:
    u = torch.tensor(root, dtype=torch.float64).square()
    value = adaptive_step(u, EPS, 0.01, 0.5 * EPS, 1.75 * EPS)
    assert value.item() == pytest.approx(pixels / 255, rel=1e-9)


def test_first_adaptive_batch_takes_half_the_squared_norm() -> None:
    model, (x, y) = two_layer(), images()
    method = atas(warmup=0)
    start = (x + delta_of(method)[index]).clamp(0, 1)
    norm = gradient_at(model, start, y).flatten(1).norm(dim=1)
    out, _ = run(method, model, x, y, index=index)
    torch.testing.assert_close(method.u[index], 0.5 * norm.square().float(), rtol=1e-5, atol=0)
    rest = torch.ones(N, dtype=torch.bool)
    rest[index] = False
    assert (method.u[rest] == 0).all()
    expected = adaptive_step(0.5 * norm.square(), EPS, 0.01, 0.5 * EPS, 1.75 * EPS)
    assert out.step_size.item() == pytest.approx(expected.mean().item(), rel=1e-5)


def test_every_image_moves_by_its_own_step() -> None:
    model, (x, y) = two_layer(), images()
    method = atas(warmup=0)
    method.u[index] = torch.tensor([0.0, 1e-4, 9e-4, 1e-2, 1e-4, 0.0])
    start = (x + delta_of(method)[index]).clamp(0, 1)
    g = gradient_at(model, start, y)
    out, _ = run(method, model, x, y, index=index)
    steps = adaptive_step(method.u[index], EPS, 0.01, 0.5 * EPS, 1.75 * EPS).double()
    delta = (start - x + steps.view(-1, 1, 1, 1) * g.sign()).clamp(-EPS, EPS)
    assert len(steps.unique()) > 2
    torch.testing.assert_close(out.x_adv, (x + delta).clamp(0, 1), rtol=0, atol=1e-7)


def test_warm_up_with_identity_augmentation_equals_fgsm_rs_from_the_stored_perturbation() -> None:
    model, (x, y) = two_layer(), images()
    method = atas()
    stored = delta_of(method)[index].double()
    ours = run(method, model, x, y, index=index)
    assert_same(ours, run(create("fgsm-rs", LINF, alpha=1.0), model, x, y, noise=stored))
    assert (method.u == 0).all()


def test_the_perturbation_is_written_back_to_its_image() -> None:
    model, (x, y) = two_layer(), images()
    method = atas()
    before = delta_of(method).clone()
    out, _ = run(method, model, x, y, index=index)
    torch.testing.assert_close(delta_of(method)[index].double(), out.x_adv - x, rtol=0, atol=1e-7)
    rest = torch.ones(N, dtype=torch.bool)
    rest[index] = False
    assert torch.equal(delta_of(method)[rest], before[rest])


def test_resets_come_before_epochs_10_and_20_of_30_only() -> None:
    method = atas(epochs=30)
    method.u.fill_(3.0)
    resets = []
    for epoch in range(2, 31):
        before = delta_of(method).clone()
        method.begin_epoch(epoch)
        if not torch.equal(before, delta_of(method)):
            resets.append(epoch)
    assert resets == [10, 20]
    assert (method.u == 3.0).all()


def test_reset_draws_new_noise_over_the_whole_ball() -> None:
    method = atas(reset_every=2)
    method.begin_epoch(2)
    assert 0.9 * EPS < delta_of(method).abs().max() <= EPS + 1e-6
    assert delta_of(method).std().item() == pytest.approx(EPS / math.sqrt(3), rel=0.15)


def test_warm_up_ends_after_epoch_5_and_survives_a_checkpoint() -> None:
    model, (x, y) = two_layer(), images()
    method = atas()
    method.begin_epoch(5)
    run(method, model, x, y, index=index)
    assert (method.u == 0).all()
    method.begin_epoch(6)
    resumed = atas()
    resumed.load_state_dict(method.state_dict())
    run(resumed, model, x, y, index=index)
    assert (resumed.u[index] > 0).all()


def test_the_state_of_an_earlier_version_is_accepted() -> None:
    method, other = atas(), atas()
    delta_of(method).fill_(0.01)
    state = method.state_dict()
    state["delta"] = state.pop("delta.values")
    other.load_state_dict(state)
    assert torch.equal(delta_of(other), delta_of(method))


def test_crop_and_flip_carry_the_memory_into_the_frame_and_back() -> None:
    model, (x, y) = two_layer(), images()
    augment = Augment.parse(("crop:2", "flip"))
    canvas = (IMAGE[0], *augment.draw(1, IMAGE[1:], torch.Generator()).canvas_size(*IMAGE[1:]))
    assert canvas == (2, 8, 8)
    method = atas(canvas=canvas)
    before = delta_of(method).clone()
    move = augment.draw(6, IMAGE[1:], torch.Generator().manual_seed(5))
    out, _ = run(method, model, x, y, index=index, transform=move)
    assert move.top is not None
    assert move.left is not None
    assert move.flip is not None
    assert 0 < move.flip.sum() < 6
    for i in range(6):
        top, left = int(move.top[i]), int(move.left[i])
        row = int(index[i])
        window = slice(top, top + 4), slice(left, left + 4)
        patch = (out.x_adv - x)[i].float()
        patch = patch.flip(2) if move.flip[i] else patch
        torch.testing.assert_close(delta_of(method)[row][:, window[0], window[1]], patch, rtol=0, atol=1e-6)
        outside = torch.ones(8, 8, dtype=torch.bool)
        outside[window] = False
        assert torch.equal(delta_of(method)[row][:, outside], before[row][:, outside])


def test_crop_starts_from_the_cropped_memory() -> None:
    model, (x, y) = two_layer(), images()
    method = atas(canvas=(2, 8, 8))
    move = Augment.parse(("crop:2", "flip")).draw(6, IMAGE[1:], torch.Generator().manual_seed(5))
    start = (x + move.from_canvas(delta_of(method)[index]).double()).clamp(0, 1)
    seen: list[Tensor] = []
    model.register_forward_pre_hook(lambda module, args: seen.append(args[0].detach()))
    method.step(model, x, y, index=index, transform=move)
    torch.testing.assert_close(seen[0], start, rtol=0, atol=1e-9)


def turned(image: Tensor, degrees: float) -> Tensor:
    """The nearest pixel of the image rotated counter-clockwise about its centre; 0 from outside."""
    angle, (height, width) = math.radians(degrees), image.shape[1:]
    result = torch.zeros_like(image)
    for row, column in itertools.product(range(height), range(width)):
        right, down = column + 0.5 - width / 2, row + 0.5 - height / 2
        i = math.floor(right * math.sin(angle) + down * math.cos(angle) + height / 2)
        j = math.floor(right * math.cos(angle) - down * math.sin(angle) + width / 2)
        if 0 <= i < height and 0 <= j < width:
            result[:, row, column] = image[:, i, j]
    return result


def test_rotation_reads_and_stores_the_nearest_pixel() -> None:
    model, (x, y) = two_layer(), images()
    method = atas().double()
    angles = [-170.0, -35.0, -10.0, 7.0, 20.0, 100.0]
    move = Transform(angle=torch.tensor(angles, dtype=torch.float64))
    memory, starts = delta_of(method)[index].clone(), list[Tensor]()
    model.register_forward_pre_hook(lambda module, args: starts.append(args[0].detach()))
    out = method.step(model, x, y, index=index, transform=move)
    for i, degrees in enumerate(angles):
        start = (x[i] + turned(memory[i], degrees)).clamp(0, 1)
        torch.testing.assert_close(starts[0][i], start, rtol=0, atol=1e-12)
        new = turned((out.x_adv - x)[i], -degrees)
        torch.testing.assert_close(delta_of(method)[index[i]], new, rtol=0, atol=1e-12)


def test_rotation_there_and_back_hardly_shrinks_a_perturbation() -> None:
    signs = torch.rand(64, 3, 28, 28, generator=torch.Generator().manual_seed(0)).sub(0.5).sign()
    draw = Augment.parse(("rotate:10",)).draw
    moves = [draw(64, (28, 28), torch.Generator().manual_seed(seed)) for seed in (1, 2)]
    stored = moves[0].to_canvas(signs, signs)
    assert stored.abs().mean() > 0.9
    assert moves[1].from_canvas(stored).abs().mean() > 0.9


def test_rotation_keeps_the_memory_inside_the_ball() -> None:
    model, (x, y) = two_layer(), images()
    method = atas()
    augment = Augment.parse(("flip", "rotate:10"))
    for seed in range(5):
        move = augment.draw(6, IMAGE[1:], torch.Generator().manual_seed(seed))
        run(method, model, x, y, index=index, transform=move)
    assert delta_of(method).isfinite().all()
    assert delta_of(method).abs().max() <= EPS + 1e-6


def test_a_resized_crop_is_refused() -> None:
    model, (x, y) = two_layer(), images()
    move = Augment.parse(("resized-crop:4",)).draw(6, IMAGE[1:], torch.Generator())
    with pytest.raises(UserError, match="resized crop cannot be inverted"):
        atas().step(model, x, y, index=index, transform=move)


def test_an_identity_transform_is_no_transform() -> None:
    model, (x, y) = two_layer(), images()
    one = run(atas(), model, x, y, index=index, transform=Transform())
    assert_same(one, run(atas(), model, x, y, index=index))


def test_half_precision_memory_is_half_as_large_and_still_trains() -> None:
    model, (x, y) = two_layer(), images()
    method = atas(dtype="float16")
    assert delta_of(method).dtype == torch.float16
    out, _ = run(method, model, x, y, index=index)
    torch.testing.assert_close(delta_of(method)[index].double(), out.x_adv - x, rtol=0, atol=2e-5)


def test_gradient_norms_can_be_given_the_scale_of_another_batch_size() -> None:
    model, (x, y) = two_layer(), images()
    plain, scaled = atas(warmup=0), atas(warmup=0, grad_reference_batch=12)
    for method in (plain, scaled):
        run(method, model, x, y, index=index)
    torch.testing.assert_close(scaled.u, plain.u * (6 / 12) ** 2)


def test_attack_runs_in_evaluation_mode_and_the_update_in_training_mode() -> None:
    model, (x, y) = batchnorm(), images(dtype=torch.float32)
    modes = []
    model.register_forward_hook(lambda module, args, out: modes.append(module.training))
    atas().step(model, x, y, index=index)
    assert modes == [False, True]
    assert int(model[1].num_batches_tracked) == 1


def test_a_gradient_norm_that_is_not_finite_is_skipped_and_counted() -> None:
    model, (x, y) = two_layer(), images()
    method = atas(warmup=0)
    method.u.fill_(0.25)
    torch.nn.init.constant_(model[-1].bias, math.nan)
    method.step(model, x, y, index=index)
    assert (method.u == 0.25).all()
    assert method.skipped.item() == 6
    assert delta_of(method).isfinite().all()


def test_missing_index_and_missing_setup_get_one_clear_line() -> None:
    model, (x, y) = two_layer(), images()
    with pytest.raises(UserError, match="stores one perturbation per image; call setup"):
        create("atas", LINF).step(model, x, y, index=index)
    with pytest.raises(UserError, match=r"needs step\(..., index=\)"):
        atas().step(model, x, y)


def test_bad_hyper_parameters_are_refused() -> None:
    with pytest.raises(UserError, match=r"atas\.alpha_min is 2\.0; allowed: 0 to 1\.75"):
        create("atas", LINF, alpha_min=2.0)
    with pytest.raises(UserError, match=r"atas\.c is 0\.0; allowed: more than 0"):
        create("atas", LINF, c=0)
    with pytest.raises(UserError, match=r"atas\.dtype is 'int8'; allowed: float32, float16"):
        create("atas", LINF, dtype="int8")


def test_the_start_is_inside_the_ball_after_eps_has_shrunk() -> None:
    model, (x, y) = two_layer(), images()
    method = atas(warmup=0)
    method.threat = LINF.scaled(0.1)
    seen: list[Tensor] = []
    model.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
    run(method, model, x, y, index=index)
    assert delta_of(method).abs().max() > 0.5 * EPS
    assert len(seen) == 2
    for inputs in seen:
        assert (inputs - x).abs().max() <= 0.1 * EPS + 1e-12
