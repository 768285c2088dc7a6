from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sora import methods
from sora.errors import UserError
from sora.methods import create

from .toys import LINF, batchnorm, images, run, two_layer, uniform


def shaky() -> tuple[torch.nn.Module, Tensor, Tensor, Tensor]:
    """A model and a batch with early, late and no mistakes on the way to the adversarial input."""
    model, (x, _) = two_layer(), images(64)
    with torch.no_grad():
        model[1].weight.mul_(4)
    y = model(x).argmax(1)
    y[:8] = (y[:8] + 1) % 3  # wrong from the start
    return model, x, y, uniform(x)


def full_perturbation(model: torch.nn.Module, x: Tensor, y: Tensor, eta: Tensor) -> Tensor:
    return run(create("fgsm-rs", LINF), model, x, y, noise=eta)[0].x_adv - x


def test_one_checkpoint_is_fgsm_rs_except_that_start_errors_train_clean() -> None:
    model, x, y, eta = shaky()
    out, _ = run(create("fgsm-ckpt", LINF, checkpoints=1), model, x, y, noise=eta)
    wrong = model((x + eta).clamp(0, 1)).argmax(1) != y
    assert 0 < wrong.sum() < len(x)
    expected = torch.where(wrong.view(-1, 1, 1, 1), x, x + full_perturbation(model, x, y, eta))
    torch.testing.assert_close(out.x_adv, expected, rtol=0, atol=1e-6)


def test_fractions_are_multiples_of_one_over_c_and_the_first_wrong_one_is_taken() -> None:
    model, x, y, eta = shaky()
    d = full_perturbation(model, x, y, eta)
    out, _ = run(create("fgsm-ckpt", LINF), model, x, y, noise=eta)
    fractions = ((out.x_adv - x) / torch.where(d.abs() > 1e-9, d, torch.nan)).flatten(1).nanmedian(1).values
    wrong_at_start = model((x + eta).clamp(0, 1)).argmax(1) != y
    wrong = [model(x + j / 3 * d).argmax(1) != y for j in range(4)]
    expected = []
    for i in range(len(x)):
        first = next((j for j in (1, 2) if wrong[j][i]), 3)
        expected.append(0.0 if wrong_at_start[i] else first / 3)
    torch.testing.assert_close(fractions, torch.tensor(expected, dtype=x.dtype), rtol=0, atol=1e-6)
    assert set(expected) == {0.0, 1 / 3, 2 / 3, 1.0}
    assert out.extras["fraction"].item() == pytest.approx(sum(expected) / len(expected))


def test_perturbation_stays_in_ball_and_box() -> None:
    model, x, y, eta = shaky()
    out, _ = run(create("fgsm-ckpt", LINF), model, x, y, noise=eta)
    assert (out.x_adv - x).abs().max() <= LINF.eps + 1e-6
    assert ((out.x_adv >= 0) & (out.x_adv <= 1)).all()


def test_attack_and_checkpoints_run_in_evaluation_mode() -> None:
    model, (x, y) = batchnorm(), images(dtype=torch.float32)
    modes = []
    model.register_forward_hook(lambda module, args, out: modes.append(module.training))
    create("fgsm-ckpt", LINF).step(model, x, y)
    assert modes == [False, False, False, True]


def test_no_checkpoint_is_refused() -> None:
    with pytest.raises(UserError, match=r"fgsm-ckpt\.checkpoints is 0; allowed: 1 or more"):
        create("fgsm-ckpt", LINF, checkpoints=0)


def test_both_checkpoint_modes_agree_without_batchnorm_and_dropout() -> None:
    model, x, y, eta = shaky()
    modes = ({"attack_mode": "train", "checkpoint_mode": "eval"}, {"checkpoint_mode": "train"}, {})
    first, *others = [run(create("ssat", LINF, **mode), model, x, y, noise=eta)[0].x_adv for mode in modes]
    for other in others:
        assert torch.equal(first, other)


def test_the_checkpoints_have_a_mode_of_their_own() -> None:
    model, (x, y) = batchnorm(), images(dtype=torch.float32)
    modes = []
    model.register_forward_hook(lambda module, args, out: modes.append(module.training))
    create("fgsm-ckpt", LINF, attack_mode="train", checkpoint_mode="eval").step(model, x, y)
    create("fgsm-ckpt", LINF, checkpoint_mode="train").step(model, x, y)
    create("fgsm-ckpt", LINF, attack_mode="train").step(model, x, y)
    assert modes == [True, False, False, True, False, True, True, True, *[True] * 4]


def test_ssat_is_another_name_that_all_methods_does_not_repeat() -> None:
    ssat = methods.info("ssat")
    assert ssat.cls is methods.info("fgsm-ckpt").cls
    assert not ssat.preset
    assert "ssat" not in methods.names(in_all=True)
