"""The registry says whether a method has a PertAlign, so that a guard can refuse it before training."""

from __future__ import annotations

import pytest
import torch

from .test_table import ROWS, batch_for, prepared
from .toys import LINF


@pytest.mark.parametrize("label", ROWS)
def test_a_method_has_a_pert_align_if_the_registry_says_so(label: str) -> None:
    model, x, y = batch_for("two layers")
    method = prepared(label, LINF, x, model)
    values = [
        method.step(model, x, y, index=torch.arange(len(x))).pert_align for _ in range(max(2, method.updates))
    ]
    assert any(bool(value.isfinite()) for value in values) == method.info.has_pert_align
