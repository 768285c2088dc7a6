"""The compiled step is one graph and gives the eager step's numbers."""

from __future__ import annotations

import copy

import pytest
import torch

from sora import methods
from sora.errors import UserError
from sora.methods import compiled_step, create

from .toys import LINF, batchnorm, images

COMPILED = [name for name in methods.names() if methods.info(name).cls.compilable]


def test_which_methods_compile() -> None:
    assert COMPILED == ["fgsm-rs", "n-fgsm", "sora"]


@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("scale", [None, 0.25])
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_the_compiled_step_agrees_with_the_eager_one(name: str, scale: float | None, backend: str) -> None:
    eager_model = batchnorm()
    del eager_model[3]  # Dropout draws its own randomness, which no noise replaces
    model = copy.deepcopy(eager_model)
    eager, method = create(name, LINF), create(name, LINF)
    x, y = images(dtype=torch.float32)
    step = compiled_step(method, model, backend=backend)
    for _ in range(2):
        noise = eager.draw(x)
        expected = eager.step(eager_model, x, y, noise=noise, loss_scale=scale)
        found = step(model, x, y, noise=noise, loss_scale=scale)
        for field in ("loss", "accuracy", "pert_align", "linearity", "step_size", "x_adv", "logits"):
            torch.testing.assert_close(getattr(found, field), getattr(expected, field), rtol=1e-5, atol=1e-5)
    # Gradients have been added up over two steps, and BatchNorm's buffers and the method's memory moved.
    assert all(bool(p.grad.abs().max() > 0) for p in model.parameters() if p.grad.dim() > 1)
    for ours, theirs in zip(model.parameters(), eager_model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-5)
    kept = (*model.buffers(), *method.buffers())
    for ours, theirs in zip(kept, (*eager_model.buffers(), *eager.buffers()), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_only_a_class_that_says_so_compiles() -> None:
    with pytest.raises(UserError, match="fgsm-rs, n-fgsm and sora"):
        compiled_step(create("pgd-2", LINF), batchnorm())


def test_labels_are_checked_before_the_first_graph() -> None:
    x, y = images(dtype=torch.float32)
    step = compiled_step(create("sora", LINF), batchnorm(), backend="aot_eager")
    with pytest.raises(UserError, match="labels run from"):
        step(None, x, y + 1)
