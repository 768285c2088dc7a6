"""FGSM and PGD: inside ball and box, as strong as they must be, without side effects on the model."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sora.attacks import create, fgsm, pgd
from sora.errors import UserError
from sora.threat import L2, Linf, Threat

torch.set_num_threads(1)

SIZE = (3, 4, 4)
THREATS = st.builds(
    lambda kind, eps, with_box: kind(eps, (0.0, 1.0) if with_box else None),
    st.sampled_from([Linf, L2]),
    st.floats(0, 1),
    st.booleans(),
)


def net(seed: int, classes: int = 5) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(96, classes)
    )


def batch(seed: int, n: int = 6, classes: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, *SIZE, generator=generator)
    x.view(-1)[::3] = x.view(-1)[::3].round()  # pixels on the box's faces are where attacks go wrong
    return x, torch.randint(classes, (n,), generator=generator)


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return float((model.eval()(x).argmax(1) == y).float().mean())


def assert_allowed(x: Tensor, x_adv: Tensor, threat: Threat) -> None:
    assert (threat.size(x_adv - x) <= threat.eps + 1e-6).all()
    if threat.box is not None:
        assert x_adv.min() >= 0
        assert x_adv.max() <= 1


@settings(max_examples=20)
@given(
    seed=st.integers(0, 99),
    threat=THREATS,
    restarts=st.integers(1, 3),
    select=st.sampled_from(["any", "max_loss"]),
)
def test_perturbations_stay_inside_ball_and_box(seed, threat, restarts, select) -> None:
    model, (x, y) = net(seed), batch(seed)
    assert_allowed(x, fgsm(model, x, y, threat), threat)
    assert_allowed(x, pgd(model, x, y, threat, 5, restarts=restarts, select=select), threat)


@settings(max_examples=10)
@given(seed=st.integers(0, 99), threat=THREATS)
def test_ten_restarts_are_never_weaker_than_their_first(seed: int, threat: Threat) -> None:
    model, (x, y) = net(seed), batch(seed, n=30)
    one = create("pgd3")(model, x, y, threat, seed=seed)
    ten = create("pgd3x10")(model, x, y, threat, seed=seed)
    broken = model.eval()(one).argmax(1) != y
    assert torch.equal(ten[broken], one[broken])
    assert accuracy(model, ten, y) <= accuracy(model, one, y)


@settings(max_examples=15)
@given(seed=st.integers(0, 999), eps=st.floats(0.001, 0.5))
def test_pgd_equals_fgsm_on_a_linear_two_class_model(seed: int, eps: float) -> None:
    torch.manual_seed(seed)
    model, (x, y) = nn.Sequential(nn.Flatten(), nn.Linear(48, 2)), batch(seed, n=40, classes=2)
    one, ten = fgsm(model, x, y, Linf(eps)), create("pgd10")(model, x, y, Linf(eps), seed)
    torch.testing.assert_close(one, ten, atol=2e-6, rtol=0)


def test_negative_eps_steps_back_and_gradients_are_taken_where_pixels_touch_the_box() -> None:
    model, (x, y) = net(0), batch(0)
    x = 0.3 + 0.4 * x
    forward, back = fgsm(model, x, y, Linf(0.1), eps=0.1), fgsm(model, x, y, Linf(0.1), eps=-0.1)
    torch.testing.assert_close(forward - x, x - back)
    assert torch.equal(fgsm(model, x, y, Linf(0.1), eps=0.0), x)
    # A clamp between leaf and model would hide the gradient of every pixel at 0 or 1.
    model, x = nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]])
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[-1.0, 1.0, -1.0, 1.0], [1.0, -1.0, 1.0, -1.0]]))
    moved = pgd(model, x, torch.tensor([0]), Linf(0.2))
    torch.testing.assert_close(moved, torch.tensor([[[[0.2, 0.8], [0.2, 0.8]]]]))


def test_max_loss_keeps_the_restart_of_highest_loss() -> None:
    model, (x, y) = net(3), batch(3, n=20)
    losses = []
    for restarts in (1, 4):
        generator = torch.Generator().manual_seed(0)
        x_adv = pgd(model, x, y, Linf(0.1), 2, restarts=restarts, select="max_loss", generator=generator)
        losses.append(nn.functional.cross_entropy(model.eval()(x_adv), y, reduction="none"))
    assert (losses[1] >= losses[0]).all()
    assert (losses[1] > losses[0]).any()


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_left_unchanged(fails: bool) -> None:
    model, (x, y) = net(0), batch(0)
    model.train()
    model[1].eval()
    model[0].weight.requires_grad_(False)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    if fails:
        with pytest.raises(UserError, match="labels run from"):
            pgd(model, x, y + 100, Linf(0.1))
    else:
        pgd(model, x, y, Linf(0.1), 2)
        fgsm(model, x, y, Linf(0.1))
    assert [module.training for module in model.modules()] == modes
    assert [p.requires_grad for p in model.parameters()] == [False, True, True, True, True, True]
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_attacks_work_inside_no_grad_and_on_vectors() -> None:
    model, x = nn.Linear(7, 3), torch.randn(5, 7) * 10
    with torch.no_grad():
        x_adv = pgd(model, x, torch.zeros(5, dtype=torch.long), L2(0.5, box=None))
    assert_allowed(x, x_adv, L2(0.5, box=None))
    assert not torch.equal(x_adv, x)


def test_wrong_inputs_get_a_clear_message() -> None:
    model, (x, y) = net(0), batch(0)
    with pytest.raises(UserError, match="outside the box"):
        fgsm(model, x * 255, y, Linf(0.1))
    with pytest.raises(UserError, match="divide uint8 images by 255"):
        pgd(model, (x * 255).byte(), y, Linf(0.1))
    with pytest.raises(UserError, match="1 or more"):
        pgd(model, x, y, Linf(0.1), steps=0)
