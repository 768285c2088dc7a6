"""A class says whether it has a PertAlign, so that the guard can refuse a run in time; here is the proof."""

from __future__ import annotations

import pytest
import torch

from .test_table import ROWS, batch_for, bound
from .toys import LINF


@pytest.mark.parametrize("label", ROWS)
def test_a_method_has_a_pert_align_if_it_says_so(label: str) -> None:
    model, x, y = batch_for("two layers")
    method = bound(label, LINF, x)
    values = [
        method.step(model, x, y, index=torch.arange(len(x))).pert_align for _ in range(max(2, method.updates))
    ]
    assert any(bool(value.isfinite()) for value in values) == method.aligned
