"""How a step is computed: half precision, a batch in parts, compiled; and inputs outside the pixel range."""

import copy
import json
import math
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from sora import data, methods
from sora._devices import device_name
from sora.data import Batch
from sora.errors import UserError
from sora.methods._compile import can_compile
from sora.runs import RunFolder
from sora.settings import Resolved, Settings
from sora.threat import Linf
from sora.training import run, state, train
from sora.training.run import Autocast
from sora.training.state import make_optimizer
from sora.training.update import step_in_parts, update_weights
from tests.methods.toys import images, two_layer
from tests.training.helpers import At, BuildSettings

SHORT: dict[str, Any] = {"epochs": 1, "eval_every": 0, "attacks": ("clean",), "snapshots": False}
# For processes in which bfloat16 is used: some virtual machines announce AMX but do not allow it.
WITHOUT_AMX = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"}


def weights(config: Settings, model: nn.Module | None = None) -> dict[str, Tensor]:
    train(config, model=model, quiet=True)
    return load_file(config.folder() / "model.safetensors")


def largest_gap(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(256, 10))


def convolution() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))


def vector(model: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


class TestPrecision:
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

    def test_bf16_crafts_the_signs_of_fp32(self) -> None:
        command = [sys.executable, "-c", self.SIGNS]
        done = subprocess.run(command, env=WITHOUT_AMX, check=True, capture_output=True, text=True)
        share, dtype = json.loads(done.stdout)
        assert dtype == "torch.float32"
        assert share > 0.98

    @pytest.mark.slow
    def test_bf16_trains_float32_weights(self, settings: BuildSettings, tmp_path: Path) -> None:
        config = settings("fgsm", precision="bf16", **SHORT)
        (tmp_path / "bf16.yaml").write_text(Resolved(config, {}).stored())
        command = [sys.executable, "-m", "sora", "train", "--config", str(tmp_path / "bf16.yaml"), "--quiet"]
        subprocess.run(command, env=WITHOUT_AMX, cwd=tmp_path, check=True, capture_output=True)
        rough, exact = (
            load_file(tmp_path / "run" / "model.safetensors"),
            weights(settings("fgsm", "b", **SHORT)),
        )
        assert all(t.dtype == torch.float32 for t in rough.values() if t.is_floating_point())
        assert 0 < largest_gap(exact, rough) < 1

    def test_only_the_passes_are_cast(self) -> None:
        model = convolution()[:3]  # without the linear layer, see above
        seen: list[torch.dtype] = []
        model[0].register_forward_hook(lambda module, args, out: seen.append(out.dtype))
        out = Autocast(model, torch.bfloat16)(torch.rand(2, 3, 8, 8))
        assert seen == [torch.bfloat16]
        assert out.dtype == torch.float32
        out.sum().backward()
        assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {torch.float32}

    def test_a_scaled_fp16_loss_gives_the_fp32_update(self) -> None:
        x, y = torch.rand(6, 3, 8, 8), torch.arange(6) % 4
        start, found = vector(convolution()), {}
        for precision in ("fp32", "fp16"):
            model, method = convolution(), methods.create("sora", Linf(8 / 255))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
            scaler = torch.amp.GradScaler("cpu", enabled=precision == "fp16")
            forward = Autocast(model, torch.float16) if precision == "fp16" else model
            torch.manual_seed(1)
            scale = scaler.scale(torch.ones(())) if scaler.is_enabled() else None
            out = method.step(forward, x, y, loss_scale=scale)
            scaler.step(optimizer)
            scaler.update()
            found[precision] = vector(model)
            assert 0.5 < float(out.pert_align) <= 1.01
        moved = (found["fp32"] - start).norm()
        assert float(moved) > 1e-3
        assert float((found["fp16"] - found["fp32"]).norm() / moved) < 0.05

    def test_an_update_that_the_scaler_skips_does_not_count_also_if_it_is_the_first(self) -> None:
        """Torch's fused SGD would leave its momentum uninitialised."""
        model, scaler = convolution(), torch.amp.GradScaler("cpu")
        optimizer = make_optimizer(Settings(precision="fp16", lr=0.1), model)
        for value, moves in ((torch.inf, False), (1.0, True), (torch.inf, False), (1.0, True)):
            before = vector(model)
            scaler.scale(torch.ones(()))
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, value)
            assert update_weights(scaler, optimizer) == moves
            assert torch.equal(vector(model), before) != moves
            torch.testing.assert_close(vector(model), before, rtol=0, atol=0.2)


class TestParts:
    @pytest.mark.parametrize("parts", [2, 3])
    def test_they_add_up_to_the_gradient_of_the_batch(self, parts: int) -> None:
        x, y = torch.rand(7, 3, 8, 8, dtype=torch.float64), torch.arange(7) % 4
        whole = convolution().double()
        split = copy.deepcopy(whole)
        expected = methods.create("benign", Linf(8 / 255)).step(whole, x, y)
        batch = Batch(x, y, torch.arange(7), None)
        method = methods.create("benign", Linf(8 / 255))
        found = step_in_parts(method, method.step, split, batch, parts, None)
        torch.testing.assert_close(found.loss.double(), expected.loss.double(), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found.accuracy, expected.accuracy, rtol=1e-5, atol=1e-6)
        for a, b in zip(whole.parameters(), split.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-9, atol=1e-12)

    def test_they_train_the_weights_of_the_batch(self, settings: BuildSettings) -> None:
        whole = weights(settings("fgsm", "whole", **SHORT), linear())
        parts = weights(settings("fgsm", "parts", accumulate=100, **SHORT), linear())
        assert largest_gap(whole, parts) < 1e-6


@pytest.mark.skipif(not can_compile(), reason="this torch cannot trace autograd in a graph")
def test_compiled_training_is_eager_training_also_while_eps_grows(settings, monkeypatch) -> None:
    # The "eager" backend runs the captured graph as it is: what is tested is what is captured.
    monkeypatch.setattr(methods, "compiled_step", partial(methods.compiled_step, backend="eager"))
    growing = SHORT | {"epochs": 4, "eps_warmup": 3.5}  # as many radii as dynamo would not compile
    eager = weights(settings("sora", "eager", **growing))
    compiled = weights(settings("sora", "compiled", compile=True, **growing))
    assert largest_gap(eager, compiled) < 1e-5


class TestSeveralProcesses:
    def test_sync_bn_needs_gpus_and_changes_nothing_in_one_process(self, settings, monkeypatch) -> None:
        alone, asked = (weights(settings("sora", str(on), sync_bn=on, **SHORT)) for on in (False, True))
        assert largest_gap(alone, asked) == 0
        monkeypatch.setattr(run, "world", lambda: 2)
        with pytest.raises(UserError, match="--sync-bn needs GPUs"):
            run.prepare_model(settings(sync_bn=True), data.load("digits"), torch.device("cpu"), linear())

    @pytest.mark.parametrize("method", ["atas", "free"])
    def test_a_memory_of_one_process_is_refused(self, settings, monkeypatch, method: str) -> None:
        monkeypatch.setattr(state, "world", lambda: 2)
        with pytest.raises(UserError, match=f"{method} stores .* with one process"):
            state.initial_state(settings(method), linear(), data.load("digits"), 96, 3)

    @pytest.mark.parametrize(
        ("asked", "there", "found"),
        [
            ("auto", "cuda", "cuda:3"),
            ("auto", "xpu", "xpu:3"),
            ("auto", None, "cpu"),
            ("cuda", "cuda", "cuda:3"),
            ("cuda:1", "cuda", "cuda:1"),
        ],
    )
    def test_each_rank_has_its_own_gpu(self, monkeypatch, asked: str, there: str | None, found: str) -> None:
        monkeypatch.setenv("LOCAL_RANK", "3")
        monkeypatch.setattr("sora._devices.accelerator", lambda: there)
        assert device_name(asked) == found

    def test_the_stored_device_is_not_that_of_a_single_rank(self, settings: BuildSettings) -> None:
        train(settings(device="auto", **SHORT), quiet=True)
        stored = RunFolder(settings().folder()).read_settings()
        assert (stored.device, stored.threads) == ("cpu", 1)


KEPT = "holdout and eval_every must be 1 or more"


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        *(
            ("benign", {"guard": g}, f"guard {g} does not apply to benign")
            for g in ("stop", "rollback", "pgd")
        ),
        ("sora", {"keep": "best", "holdout": 0}, KEPT),
        ("sora", {"keep": "best", "eval_every": 0}, KEPT),
        ("sora", {"monitor": "gradalig"}, "'gradalig'; did you mean 'gradalign'"),
    ],
)
def test_settings_that_cannot_be_followed_are_refused(settings, method, changes, message) -> None:
    with pytest.raises(UserError, match=message):
        settings(method, **changes)


class TestOutsideTheBox:
    """A later batch outside the pixel range is noticed at the next log line, without waiting in the step."""

    @pytest.mark.parametrize(
        ("factor", "accumulate"), [(2.0, 1), (-1.0, 1), (math.nan, 1), (math.inf, 1), (2.0, 2), (math.nan, 2)]
    )
    def test_a_later_batch_is_noticed_with_the_log_line(self, settings, factor, accumulate) -> None:
        config = settings(accumulate=accumulate, batch_size=12, log_every=4, checkpoint_every=0, **SHORT)
        with pytest.raises(UserError, match=r"the 4 steps up to step 8 has inputs outside \(0.0, 1.0\)"):
            train(config, hooks=[At(5, lambda run, batch: batch.x.mul_(factor))], quiet=True)
        (line,) = RunFolder(config.folder()).read_log("metrics")
        assert line["step"] == 4
        assert "outside_box" not in line

    def test_data_without_a_pixel_range_must_be_finite(self) -> None:
        method, model, (x, y) = methods.create("sora", Linf("8/255", box=None)), two_layer(), images()
        method.step(model, x, y)
        flags = [method.step(model, x * factor, y).extras["outside_box"].item() for factor in (100, math.inf)]
        assert flags == [0, 1]


def test_zero_gradient_pixels_are_counted() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    with torch.no_grad():
        model[1].weight[:, :3] = 0
    out = methods.create("fgsm-rs", Linf(8 / 255)).step(model, torch.rand(5, 3, 2, 2), torch.arange(5) % 2)
    assert float(out.extras["zero_gradient"]) == pytest.approx(3 / 12)
