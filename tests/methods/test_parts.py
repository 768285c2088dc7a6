"""A batch in parts (`--accumulate`): a method decides once per batch, and stores all its rows."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from sora.data import Batch
from sora.training.update import step_in_parts

from .toys import CLASSES, images, prepared, run, two_layer, uniform

CUTS = (slice(0, 3), slice(3, 4), slice(4, 7))
# On a model without BatchNorm, parts give exactly the batch's state and gradients.
EXACT: dict[str, dict[str, object]] = {
    "free": {"replays": 1},
    "fgsm-bp": {},
    "tdat": {"mo": 0.75},
    "fgsm-uap": {},
    "fgsm-cuap": {"momentum_of": "attack"},
    "fgsm-fuap": {"count": 5, "head_lr": 0.1},
    "liet": {"nu": 0.0, "every": 2},
    "gat": {"lam": 1000.0},
    "nuat": {"lam": 0.0, "alternate": True},
}


def cut(noise: tuple[Tensor, ...], rows: slice) -> tuple[Tensor, ...]:
    return tuple(tensor[rows] if tensor.dim() else tensor for tensor in noise)


@pytest.mark.parametrize("name", EXACT)
def test_parts_leave_the_state_and_the_gradients_of_the_batch(name: str) -> None:
    model = two_layer()
    whole, parts = (prepared(name, model=model, **EXACT[name]).double() for _ in range(2))
    for seed in range(3):
        (x, y), share = images(7, seed=seed), 1 / 7
        noise = whole.draw(x)
        expected, by_parts = copy.deepcopy(model), copy.deepcopy(model)
        out = whole.step(expected, x, y, noise=noise)
        found = []
        for rows in CUTS:
            parts.ends_batch = rows is CUTS[-1]
            weight = share * (rows.stop - rows.start)
            known: Any = {"noise": cut(noise, rows), "loss_scale": weight}
            found.append(parts.step(by_parts, x[rows], y[rows], **known).x_adv)
        torch.testing.assert_close(torch.cat(found), out.x_adv, rtol=0, atol=1e-12)
        for one, other in zip(by_parts.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-12)
        for key, value in whole.state_dict().items():
            torch.testing.assert_close(parts.state_dict()[key], value, rtol=1e-10, atol=1e-12)
        with torch.no_grad():
            for parameter, after in zip(model.parameters(), expected.parameters(), strict=True):
                parameter -= 0.1 * after.grad if after.grad is not None else 0.0


def test_liet_draws_one_share_and_one_sign_per_batch() -> None:
    model = two_layer()
    method = prepared("liet", model=model, lo=0.0, hi=1.0, every=2).double()
    grey: list[int] = []
    model.register_forward_hook(lambda module, args, z: grey.append(len(z)) if not module.training else None)
    drawn = []
    for seed in range(4):
        x, y = images(7, seed=seed)
        for rows in CUTS:
            method.ends_batch = rows is CUTS[-1]
            method.step(model, x[rows], y[rows])
            drawn.append((float(method.share), int(method.sign)))
    batches = [drawn[start : start + 3] for start in range(0, 12, 3)]
    assert all(len(set(batch)) == 1 for batch in batches)
    assert len({batch[0] for batch in batches}) == 4
    assert grey == [CLASSES] * 2  # before the first and the third batch
    assert method.batches.seen == 4


def test_lass_trains_its_predictor_once_in_a_batch_that_is_due() -> None:
    model = two_layer()
    method = prepared("fgsm-lass", model=model, every=2, step_lr=0.1).double()
    changed = []
    for seed in range(3):
        x, y = images(7, seed=seed)
        for rows in CUTS:
            before = [p.detach().clone() for p in method.predictor.parameters()]
            method.ends_batch = rows is CUTS[-1]
            method.step(model, x[rows], y[rows])
            changed.append(not all(map(torch.equal, before, method.predictor.parameters())))
    assert changed == [True, False, False] + [False] * 3 + [True, False, False]


def test_the_training_loop_tells_methods_where_a_part_is_and_when_a_batch_ends() -> None:
    model, (x, y) = two_layer(), images(7)
    batch = Batch(x, y, torch.arange(7), None)
    whole, parts = (prepared("fgsm-bp", model=model).double() for _ in range(2))
    for _ in range(2):
        step_in_parts(whole, whole.step, copy.deepcopy(model), batch, 1, None)
        step_in_parts(parts, parts.step, copy.deepcopy(model), batch, 3, None)
    torch.testing.assert_close(parts.state_dict(), whole.state_dict(), rtol=0, atol=1e-12)
    run(parts, model, x[:2], y[:2], noise=uniform(x[:2]))  # a batch again, from its first row
    assert parts.first_row == 0
