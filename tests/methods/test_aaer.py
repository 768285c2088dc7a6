import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sora import curvature
from sora.methods import create
from sora.methods.aaer import regulariser
from sora.threat import Linf

from .toys import LINF, Ran, assert_same_gradients, gradient_at, images, run, two_layer, uniform

WIDE = Linf(0.2)
L0 = torch.ones(4)
L1 = torch.tensor([0.5, 2.0, 2.0, 2.0])
DISTANCE = torch.tensor([4.0, 1.0, 0.5, 1.5])


def test_regulariser_of_the_reference_losses() -> None:
    assert regulariser(L0, L1, DISTANCE, 1.5, 0.15).item() == pytest.approx(0.3, abs=1e-6)
    near = torch.tensor([0.5, 1.0, 0.5, 1.5])  # the logit term counts only where abnormal ones moved further
    assert regulariser(L0, L1, near, 1.5, 0.15).item() == pytest.approx(0.25 * 1.5 * 0.5)


@pytest.mark.parametrize("l1", [torch.full((4,), 2.0), torch.full((4,), 0.5), L1.clamp(min=1)])
def test_all_or_no_abnormal_examples_give_zero_and_finite_gradients(l1: Tensor) -> None:
    distance = DISTANCE.clone().requires_grad_()
    value = regulariser(L0, l1, distance, 1.5, 0.15)
    assert value.item() == 0.0
    value.backward()
    assert (distance.grad == 0).all()


def test_normal_examples_distance_carries_no_gradient() -> None:
    distance = DISTANCE.clone().requires_grad_()
    regulariser(L0, L1, distance, 1.5, 0.15).backward()
    torch.testing.assert_close(distance.grad, torch.tensor([0.25 * 0.15, 0.0, 0.0, 0.0]))


# A batch with both normal and abnormal adversarial examples.
CURVED, (MANY, LABELS) = two_layer(), images(32)
with torch.no_grad():
    CURVED[1].weight.mul_(30)  # so curved that a step overshoots
NOISE = 2 * uniform(MANY, WIDE.eps)


def mixed(epoch: int = 1, **options: object) -> Ran:
    method = create("aaer", WIDE, **options)
    method.begin_epoch(epoch)
    ran = run(method, CURVED, MANY, LABELS, noise=NOISE, index=None)
    assert 0 < ran[0].extras["aae_share"] < 1
    return ran


def test_the_loss_has_the_regulariser_and_lambda2_reaches_gradients_only_if_not_detached() -> None:
    one, other = (mixed(lambda2=value) for value in (1.5, 8.5))
    assert one[0].loss != other[0].loss
    assert_same_gradients(one[1], other[1])
    through = [mixed(lambda2=value, detach_ce=False)[1] for value in (1.5, 8.5)]
    assert max((a - b).abs().max() for a, b in zip(*through, strict=True)) > 1e-4
    out, _ = mixed()
    z0, z1 = CURVED((MANY + NOISE).clamp(0, 1)), CURVED(out.x_adv)
    l0, l1 = (F.cross_entropy(z, LABELS, reduction="none") for z in (z0, z1))
    expected = l1.mean() + regulariser(l0, l1, (z1 - z0).square().sum(1), 1.5, 0.15)
    torch.testing.assert_close(out.loss, expected.detach())
    assert out.extras["aae_share"].item() == pytest.approx((l0 > l1).double().mean().item())


def test_strict_takes_pert_align_from_the_cross_entropy_alone() -> None:
    full, strict = (mixed(strict=flag, lambda2=50.0, detach_ce=False) for flag in (False, True))
    g = gradient_at(CURVED, (MANY + NOISE).clamp(0, 1), LABELS)
    expected = curvature.pert_align(g, gradient_at(CURVED, full[0].x_adv, LABELS))
    torch.testing.assert_close(strict[0].pert_align, expected)
    assert abs(full[0].pert_align - expected) > 1e-4
    assert (full[0].extras["strict"].item(), strict[0].extras["strict"].item()) == (0.0, 1.0)
    assert_same_gradients(full[1], strict[1])


def test_the_long_schedule_ramps_the_regulariser_up_and_each_variant_has_its_defaults() -> None:
    losses = {epoch: mixed(epoch, ramp_epochs=20)[0].loss.item() for epoch in (1, 6, 21, 30)}
    plain, full = mixed(lambda1=0)[0].loss.item(), mixed()[0].loss.item()
    assert losses[1] == plain  # the authors count epochs from 0
    assert losses[6] - plain == pytest.approx((full - plain) / 4)
    assert losses[21] == losses[30] == full
    n, rs = (create("aaer", LINF, variant=variant).hyper for variant in ("n", "rs"))
    assert (n.alpha, n.lambda1, n.lambda2, n.lambda3) == (1.0, 1.0, 1.5, 0.15)
    assert (rs.alpha, rs.lambda1, rs.lambda2, rs.lambda3) == (1.25, 1.0, 2.5, 1.5)
    assert create("aaer", LINF, variant="rs", lambda2=3.5).hyper.lambda2 == 3.5
    assert create("aaer", LINF, variant="rs", alpha="none", lambda3=None).hyper == rs
