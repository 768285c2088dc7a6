"""FGSM-RS-CS and FGSM-MEP-CS: the checks of more-methods.md, section 3.4."""

import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from sora._passes import mse
from sora.methods._converge import Constraint, ConvergeHyper
from sora.settings import Settings
from sora.training.schedule import rate_drops

from .toys import ETA, INDEX, MODEL, X, Y, assert_loss, prepared, rows, run


def constraint(u: float = 1.0, du: float = 0.0, active: bool = True, **hyper: Any) -> Constraint:
    made = Constraint(ConvergeHyper(**hyper))
    made.u.fill_(u)
    made.du.fill_(du)
    made.active.fill_(active)
    return made


@pytest.mark.parametrize(("loss", "term"), [(1.02, 0.0), (1.05, 1.05), (0.95, -0.95), (0.98, 0.0)])
def test_the_term_of_a_clean_loss(loss: float, term: float) -> None:
    assert constraint().term(torch.tensor(loss)).item() == pytest.approx(term)
    assert constraint(active=False).term(torch.tensor(loss)).item() == 0.0
    assert constraint(w2=2.0).term(torch.tensor(loss)).item() == pytest.approx(2 * term)


def test_the_term_has_the_gradient_of_the_absolute_difference() -> None:
    for value, slope in ((1.05, 1.0), (0.95, -1.0), (1.01, 0.0)):
        loss = torch.tensor(value, requires_grad=True)
        constraint().term(loss).backward()
        assert loss.grad is not None
        assert loss.grad.item() == slope


@pytest.mark.parametrize(("du", "gamma"), [(0.02, 0.02), (0.005, 0.01), (-0.2, 0.01), (0.5, 0.03)])
def test_gamma_follows_the_last_change_between_its_bounds(du: float, gamma: float) -> None:
    made = constraint(du=du, ratio=3.0)
    assert made.term(torch.tensor(1 + gamma - 1e-4)).item() == 0.0
    assert made.term(torch.tensor(1 + gamma + 1e-4)).item() > 0.0


def test_the_mean_weighs_batches_by_their_size_and_skips_what_is_not_finite() -> None:
    made = constraint(u=2.0)
    made.add(torch.tensor(1.0), 128)
    made.add(torch.tensor(2.0), 80)
    made.begin_epoch(2)
    assert made.u.item() == pytest.approx(1.384615, abs=1e-6)
    assert made.du.item() == pytest.approx(1.384615 - 2, abs=1e-6)
    made = constraint()
    made.add(torch.tensor(math.nan), 128)
    made.begin_epoch(2)
    assert (made.u.item(), made.du.item()) == (1.0, 0.0)
    made.add(torch.tensor(math.inf), 128)
    made.add(torch.tensor(3.0), 4)
    made.begin_epoch(3)
    assert made.u.item() == 3.0


DROPS = Settings(epochs=110, schedule="multistep", milestones=(100 / 110, 105 / 110))


@pytest.mark.parametrize(
    ("schedule", "drops", "active"),
    [
        (DROPS, (100, 105), [*range(3, 100), 103, 104, 108, 109]),
        (Settings(epochs=10), (), [*range(3, 10)]),  # a smooth schedule has only a start and an end
    ],
)
def test_epochs_in_which_the_constraint_is_active(schedule, drops, active) -> None:
    made, found = constraint(), []
    assert rate_drops(schedule) == drops
    made.setup(schedule.epochs, drops)
    for epoch in range(1, schedule.epochs + 1):
        made.begin_epoch(epoch)
        found += [epoch] if made.active else []
    assert found == active


@pytest.mark.parametrize("name", ["fgsm-rs-cs", "fgsm-mep-cs"])
@pytest.mark.parametrize("initialize", [False, True])
def test_loss_and_gradient_of_an_active_constraint(name: str, initialize: bool) -> None:
    method = prepared(name, initialize=initialize, reg_single=True, reg_multi=not initialize)
    method.begin_epoch(3)
    rs = name == "fgsm-rs-cs"
    start = (X + ETA).clamp(0, 1) if rs else X + method.delta.values[INDEX].double()
    ran = run(method, noise=ETA)
    z0, z1 = MODEL(start), MODEL(ran[0].x_adv)
    at_clean = z0 if rs or initialize else MODEL(X)
    clean = F.cross_entropy(at_clean, Y if rs and initialize else rows(0.6))
    agreement = ((z1 - z0).sign() * (z0 - at_clean).sign()).mean()  # 0 where the clean loss is the start's
    assert (agreement == 0) == (rs or initialize)
    penalty = (7 if rs else 10) * (mse(z1, z0) + agreement)
    assert_loss(ran, F.cross_entropy(z1, rows(0.6)) + penalty + clean)
    method.begin_epoch(4)
    assert method.constraint.u.item() == pytest.approx(clean.item(), rel=1e-5)
