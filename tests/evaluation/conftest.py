"""AutoAttack called directly through the classes of `pyautoattack`, as the reference for our results."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from sora._seeds import mix
from tests.attacks.short import short_autoattack

__all__ = ["short_autoattack"]
Robust = dict[str, Tensor]


def by_hand(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    eps: float,
    *,
    batch_size: int,
    seed: int,
    targets: int,
    iterations: int = 100,
    queries: int = 5000,
) -> Robust:
    """Which examples are correctly classified before AutoAttack and after each of its parts (linf)."""
    from pyautoattack.autopgd_base import APGDAttack, APGDAttack_targeted
    from pyautoattack.fab_pt import FABAttack_PT
    from pyautoattack.square import SquareAttack

    model.eval().requires_grad_(False)
    common = {"eps": eps, "norm": "Linf", "n_restarts": 1, "device": "cpu"}
    parts = {
        "apgd-ce": APGDAttack(model, n_iter=iterations, loss="ce", rho=0.75, **common),
        "apgd-t": APGDAttack_targeted(model, n_iter=iterations, rho=0.75, n_target_classes=targets, **common),
        "fab-t": FABAttack_PT(model, n_iter=iterations, targeted=True, n_target_classes=targets, **common),
        "square": SquareAttack(model, n_queries=queries, p_init=0.8, resc_schedule=False, **common),
    }
    robust = torch.cat([model(part).argmax(1) for part in x.split(batch_size)]) == y
    after = {"clean": robust}
    for name, attack in parts.items():
        robust = robust.clone()
        left = robust.nonzero()[:, 0]
        for number, batch in enumerate(left.split(batch_size) if len(left) else ()):
            attack.seed = mix(seed, zlib.crc32(name.encode()), number)
            robust[batch] = model(attack.perturb(x[batch], y[batch])).argmax(1) == y[batch]
        after[name] = robust
    return after


@pytest.fixture
def autoattack_by_hand() -> Callable[..., Robust]:
    return by_hand
