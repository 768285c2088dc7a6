import pytest
import torch

from sora import methods
from sora.methods import StepOutput, create

from .toys import LINF, images, run, two_layer, uniform

# A model and a batch with early, late and no mistakes on the way to the adversarial input.
SHAKY, (MANY, _) = two_layer(), images(64)
with torch.no_grad():
    SHAKY[1].weight.mul_(4)
LABELS = SHAKY(MANY).argmax(1)
LABELS[:8] = (LABELS[:8] + 1) % 3  # wrong from the start
NOISE = uniform(MANY)


def attack(name: str = "fgsm-ckpt", **options: object) -> StepOutput:
    return run(create(name, LINF, **options), SHAKY, MANY, LABELS, noise=NOISE, index=None)[0]


def test_one_checkpoint_is_fgsm_rs_except_that_start_errors_train_clean() -> None:
    wrong = SHAKY((MANY + NOISE).clamp(0, 1)).argmax(1) != LABELS
    assert 0 < wrong.sum() < len(MANY)
    expected = torch.where(wrong.view(-1, 1, 1, 1), MANY, attack("fgsm-rs").x_adv)
    torch.testing.assert_close(attack(checkpoints=1).x_adv, expected, rtol=0, atol=1e-6)


def test_fractions_are_multiples_of_one_over_c_and_the_first_wrong_one_is_taken() -> None:
    out, d = attack(), attack("fgsm-rs").x_adv - MANY
    fractions = (out.x_adv - MANY) / torch.where(d.abs() > 1e-9, d, torch.nan)
    fractions = fractions.flatten(1).nanmedian(1).values
    wrong_at_start = SHAKY((MANY + NOISE).clamp(0, 1)).argmax(1) != LABELS
    wrong = [SHAKY(MANY + j / 3 * d).argmax(1) != LABELS for j in range(4)]
    expected = []
    for i in range(len(MANY)):
        first = next((j for j in (1, 2) if wrong[j][i]), 3)
        expected.append(0.0 if wrong_at_start[i] else first / 3)
    torch.testing.assert_close(fractions, torch.tensor(expected).to(fractions), rtol=0, atol=1e-6)
    assert set(expected) == {0.0, 1 / 3, 2 / 3, 1.0}
    assert out.extras["fraction"].item() == pytest.approx(sum(expected) / len(expected))


def test_ssat_is_another_name_that_all_methods_does_not_repeat() -> None:
    ssat = methods.info("ssat")
    assert ssat.cls is methods.info("fgsm-ckpt").cls
    assert not ssat.preset
    assert "ssat" not in methods.names(in_all=True)
