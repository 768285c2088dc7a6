"""Learning rate, momentum and eps over a run."""

import pytest
import torch

from sora.settings import Settings
from sora.training import schedule

CYCLE = {"schedule": "one-cycle", "lr": 0.1, "lr_min": 4e-7, "momentum": 0.95, "cycle_momentum": True}


def rates(total: int, updates: int, **settings: object) -> list[float]:
    return [schedule.learning_rate(Settings(**settings), update, total) for update in range(updates)]


def test_cyclic_cosine_and_multistep_rates() -> None:
    found = rates(10, 11, lr=0.2, lr_min=0.01, schedule="cyclic")
    assert (found[0], found[5], found[10]) == pytest.approx((0.01, 0.2, 0.01))
    assert found[:6] == sorted(found[:6])
    assert found[5:] == sorted(found[5:], reverse=True)
    odd = rates(5, 6, lr=0.2, lr_min=0.01, schedule="cyclic")  # rises over the smaller half
    assert max(range(6), key=odd.__getitem__) == 2
    found = rates(100, 101, lr=0.05, lr_min=0.001, schedule="cosine")
    assert (found[0], found[50], found[100]) == pytest.approx((0.05, 0.0255, 0.001))
    found = rates(8, 8, lr=0.1, schedule="multistep", milestones=(0.5, 0.75))
    assert found == pytest.approx([0.1] * 4 + [0.01] * 2 + [0.001] * 2)


def test_one_cycle_is_stepped_per_epoch_and_moves_the_momentum() -> None:
    """more-methods.md, section 5: 0.004 at e = 1, 0.1 at e = 30, 4e-7 at e = 100."""
    config, steps = Settings(epochs=100, **CYCLE), 383
    for epoch, rate, momentum in ((1, 0.004, 0.95), (30, 0.1, 0.85), (100, 4e-7, 0.95)):
        for update in ((epoch - 1) * steps, epoch * steps - 1):
            assert schedule.learning_rate(config, update, 100 * steps) == pytest.approx(rate)
            assert schedule.momentum(config, update, 100 * steps) == pytest.approx(momentum)


@pytest.mark.parametrize("epochs", [4, 5, 10, 100])
def test_one_cycle_agrees_with_torch(epochs: int) -> None:
    config = Settings(epochs=epochs, **CYCLE)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1, momentum=0.9)
    reference = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=epochs)
    for epoch in range(epochs):
        (group,) = optimizer.param_groups
        assert schedule.learning_rate(config, 3 * epoch + 1, 3 * epochs) == pytest.approx(group["lr"])
        assert schedule.momentum(config, 3 * epoch + 1, 3 * epochs) == pytest.approx(group["momentum"])
        optimizer.step()
        reference.step()


@pytest.mark.parametrize("epochs", [1, 2, 3])
def test_a_short_one_cycle_begins_at_its_peak(epochs: int) -> None:
    found = rates(epochs, epochs, epochs=epochs, **CYCLE)
    assert found[0] == pytest.approx(0.1)
    assert found == sorted(found, reverse=True)


def test_each_image_size_has_an_equal_share_of_the_epochs() -> None:
    assert [schedule.image_size((16, 24, 32), epoch, 7) for epoch in range(7)] == [16] * 3 + [24] * 2 + [
        32
    ] * 2
    assert schedule.image_size((), 3, 7) is None


def test_momentum_is_constant_unless_asked_and_eps_may_grow() -> None:
    assert {schedule.momentum(Settings(schedule="cyclic"), update, 10) for update in range(10)} == {0.9}
    cycled = Settings(cycle_momentum=True)
    assert schedule.momentum(cycled, 5, 10) == pytest.approx(0.8)
    assert schedule.momentum(cycled, 0, 10) == pytest.approx(0.9)
    config = Settings(eps_warmup=2)
    assert [schedule.eps_factor(config, step, 2) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert schedule.eps_factor(Settings(), 0, 10) == 1.0
