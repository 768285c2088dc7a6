from __future__ import annotations

import copy

import torch
from torch import nn

from sora.methods import create

from .toys import LINF, batchnorm, images, run, two_layer


def test_loss_is_plain_cross_entropy() -> None:
    model, (x, y) = two_layer(), images()
    out, _ = run(create("benign", LINF), model, x, y)
    assert torch.equal(out.loss, nn.functional.cross_entropy(model(x), y).detach())
    assert torch.equal(out.x_adv, x)
    assert out.pert_align.isnan()
    assert out.linearity.isnan()


def test_same_seed_gives_the_same_weights_as_a_bare_loop() -> None:
    ours, bare = batchnorm(), batchnorm()
    method = create("benign", LINF)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (ours, bare)]
    for step in range(3):
        x, y = images(dtype=torch.float32, seed=step)
        for model, optimizer in zip((ours, bare), optimizers, strict=True):
            torch.manual_seed(step)
            optimizer.zero_grad()
            if model is ours:
                method.step(model, x, y)
            else:
                nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    for one, other in zip(ours.state_dict().values(), bare.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def test_step_adds_to_gradients_and_never_zeroes_them() -> None:
    model, (x, y) = two_layer(), images()
    method, once = create("benign", LINF), copy.deepcopy(model)
    method.step(once, x, y)
    method.step(model, x, y)
    method.step(model, x, y)
    for twice, single in zip(model.parameters(), once.parameters(), strict=True):
        torch.testing.assert_close(twice.grad, 2 * single.grad)
