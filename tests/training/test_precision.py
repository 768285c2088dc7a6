"""Half precision crafts the same attack, and splitting a batch changes no gradient."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from sora import methods
from sora.data import Batch
from sora.settings import Settings
from sora.threat import Linf
from sora.training.run import Autocast
from sora.training.state import make_optimizer
from sora.training.update import step_in_parts, update_weights

torch.set_num_threads(1)

SIGNS = """
import json, torch
from sora import models
from sora._passes import input_gradient
from sora.training.run import Autocast
torch.set_num_threads(1)
torch.manual_seed(0)
model = models.create("preactresnet18", 10, width=16).eval()
x, y = torch.rand(16, 3, 32, 32), torch.randint(0, 10, (16,))
full, half = (input_gradient(m, x, y)[0] for m in (model, Autocast(model, torch.bfloat16)))
large = full.abs() >= full.abs().median()
print(json.dumps([float((full.sign() == half.sign())[large].float().mean()), str(half.dtype)]))
"""


def test_bf16_crafts_the_signs_of_fp32() -> None:
    # In a process of its own: some virtual machines announce AMX but do not allow it.
    env = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"}
    done = subprocess.run([sys.executable, "-c", SIGNS], env=env, check=True, capture_output=True, text=True)
    share, dtype = json.loads(done.stdout)
    assert dtype == "torch.float32"
    assert share > 0.98


def convolution() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))


def test_only_the_passes_are_cast() -> None:
    model = convolution()[:3]  # without the linear layer, see above
    seen: list[torch.dtype] = []
    model[0].register_forward_hook(lambda module, args, out: seen.append(out.dtype))
    out = Autocast(model, torch.bfloat16)(torch.rand(2, 3, 8, 8))
    assert seen == [torch.bfloat16]
    assert out.dtype == torch.float32
    out.sum().backward()
    assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {torch.float32}


def test_a_scaled_fp16_loss_gives_the_fp32_update() -> None:
    x, y = torch.rand(6, 3, 8, 8), torch.arange(6) % 4
    weights = {}
    for precision in ("fp32", "fp16"):
        model = convolution()
        method = methods.create("sora", Linf(8 / 255))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
        scaler = torch.amp.GradScaler("cpu", enabled=precision == "fp16")
        forward = Autocast(model, torch.float16) if precision == "fp16" else model
        torch.manual_seed(1)
        scale = scaler.scale(torch.ones(())) if scaler.is_enabled() else None
        out = method.step(forward, x, y, loss_scale=scale)
        scaler.step(optimizer)
        scaler.update()
        weights[precision] = torch.cat([p.detach().flatten() for p in model.parameters()])
        assert 0.5 < float(out.pert_align) <= 1.01
    start = torch.cat([p.detach().flatten() for p in convolution().parameters()])
    moved = (weights["fp32"] - start).norm()
    assert float(moved) > 1e-3
    assert float((weights["fp16"] - weights["fp32"]).norm() / moved) < 0.05


@pytest.mark.parametrize("parts", [2, 3, 4, 100])
def test_parts_of_a_batch_add_up_to_its_gradient(parts: int) -> None:
    x, y = torch.rand(7, 3, 8, 8, dtype=torch.float64), torch.arange(7) % 4
    whole = convolution().double()
    split = copy.deepcopy(whole)
    expected = methods.create("benign", Linf(8 / 255)).step(whole, x, y)
    batch = Batch(x, y, torch.arange(7), None)
    found = step_in_parts(methods.create("benign", Linf(8 / 255)), split, batch, parts, None)
    torch.testing.assert_close(found.loss.double(), expected.loss.double(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.accuracy, expected.accuracy, rtol=1e-5, atol=1e-6)
    for a, b in zip(whole.parameters(), split.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-9, atol=1e-12)


def test_the_weight_of_a_part_does_not_reach_the_attack() -> None:
    x, y = torch.rand(4, 3, 8, 8, dtype=torch.float64), torch.arange(4)
    method = methods.create("sora", Linf(8 / 255))
    noise = method.draw(x)
    plain = method.step(convolution().double(), x, y, noise=noise)
    again = methods.create("sora", Linf(8 / 255))
    weighted = again.step(convolution().double(), x, y, noise=noise, loss_scale=0.25)
    torch.testing.assert_close(weighted.x_adv, plain.x_adv, rtol=0, atol=0)
    torch.testing.assert_close(weighted.linearity, plain.linearity)


def test_zero_gradient_pixels_are_counted() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    with torch.no_grad():
        model[1].weight[:, :3] = 0
    out = methods.create("fgsm-rs", Linf(8 / 255)).step(model, torch.rand(5, 3, 2, 2), torch.arange(5) % 2)
    assert float(out.extras["zero_gradient"]) == pytest.approx(3 / 12)


def test_momentum_is_not_fused_in_float16_where_the_first_update_may_be_skipped() -> None:
    optimizer = make_optimizer(Settings(precision="fp16"), nn.Linear(2, 2))
    layer = optimizer.param_groups[0]["params"][0]
    scaler = torch.amp.GradScaler("cpu")
    for gradient in (torch.inf, 0.0):
        scaler.scale(torch.zeros(()))
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.grad = torch.full_like(parameter, gradient)
        before = layer.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        torch.testing.assert_close(layer.detach(), before, rtol=0.01, atol=0.01)


def test_an_update_that_the_scaler_skips_does_not_count() -> None:
    model, scaler = convolution(), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = copy.deepcopy(model.state_dict())
    for value, moves in ((1.0, True), (float("inf"), False), (1.0, True)):
        scaler.scale(torch.ones(()))
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, value)
        assert update_weights(scaler, optimizer) == moves
        after = copy.deepcopy(model.state_dict())
        assert any(not torch.equal(after[name], before[name]) for name in after) == moves
        before = after
