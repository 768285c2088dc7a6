"""The passes that methods, attacks and probes share."""

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from sora import methods
from sora._passes import ascend, evaluating, frozen, gradient_of
from sora._seeds import seeded
from sora.threat import L2, Linf, Threat

torch.set_num_threads(1)


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def margin(logits: Tensor) -> Tensor:
    return (logits[:, 1] - logits[:, 0]).sum()


@pytest.mark.parametrize("threat", [Linf(0.1), L2(0.3)], ids=["linf", "l2"])
def test_ascent_repeats_projected_steps_and_returns_the_first_gradients(threat: Threat) -> None:
    model, x = small_model(), torch.rand(4, 6, dtype=torch.float64)
    start = at = threat.clamp(x + threat.random_start(x))
    gradients = []
    for _ in range(3):
        leaf = at.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(margin(model(leaf)), leaf)
        gradients.append(gradient)
        at = threat.inside(x, at - x + 0.05 * threat.direction(gradient))
    last, kept, _ = ascend(margin, model, x, start, threat, 3, 0.05, keep=2)
    torch.testing.assert_close(last, at)
    torch.testing.assert_close(kept, gradients[:2])
    assert ascend(margin, model, x, start, threat, 3, 0.05)[1] == []


def test_ascent_increases_the_loss_leaves_no_gradient_and_ignores_a_loss_scale() -> None:
    model, x = small_model(), torch.rand(4, 6, dtype=torch.float64)
    last = ascend(margin, model, x, x, Linf(0.1), 10, 0.025).x_adv
    assert margin(model(last)) > margin(model(x))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not last.requires_grad
    plain, _ = gradient_of(margin, model, x)
    scaled, _ = gradient_of(margin, model, x, loss_scale=1024.0)
    torch.testing.assert_close(scaled, plain)


@pytest.mark.parametrize("block", [evaluating, frozen])
def test_modes_and_flags_are_restored_after_an_exception(block) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.Linear(2, 2)).train()
    model[1].eval()
    model[0].weight.requires_grad_(False)
    modes = [module.training for module in model.modules()]
    flags = [parameter.requires_grad for parameter in model.parameters()]
    with block(model):
        assert not any(module.training for module in model.modules())
    with pytest.raises(RuntimeError), block(model):
        raise RuntimeError
    assert [module.training for module in model.modules()] == modes
    assert [parameter.requires_grad for parameter in model.parameters()] == flags


def frozen_for_a_moment(model: nn.Module) -> None:
    with frozen(model):
        pass


def one_step(model: nn.Module) -> None:
    methods.create("fgsm", Linf(0.1)).step(model, torch.rand(4, 6).double(), torch.tensor([0, 1, 2, 0]))
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("beside", [frozen_for_a_moment, one_step])
def test_a_thread_waits_for_one_that_uses_the_same_layers(beside: Callable[[nn.Module], None]) -> None:
    model, done = small_model(), list[str]()
    thread = threading.Thread(target=lambda: (beside(model), done.append("done")))
    with frozen(nn.Sequential(nn.Flatten(), model)):  # another model of the same layers
        thread.start()
        thread.join(0.2)
        assert not done
        frozen_for_a_moment(small_model())
    thread.join()
    assert done
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_threads_take_turns_with_the_global_generator() -> None:
    thread = threading.Thread(target=lambda: seeded(1).__enter__())
    with seeded(0):
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        drawn = torch.rand(1)
    thread.join()
    assert torch.equal(drawn, torch.rand(1, generator=torch.Generator().manual_seed(0)))
