"""Settings that change how a step is computed, as the training loop uses them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from sora import data, methods
from sora._devices import device_name
from sora.errors import UserError
from sora.methods._compile import can_compile
from sora.runs import RunFolder
from sora.settings import Resolved, Settings
from sora.training import run, state, train

BuildSettings = Callable[..., Settings]
SHORT: dict[str, Any] = {"epochs": 1, "eval_every": 0, "attacks": ("clean",), "snapshots": False}


def weights(config: Settings, model: nn.Module | None = None) -> dict[str, Tensor]:
    train(config, model=model, quiet=True)
    return load_file(config.folder() / "model.safetensors")


def largest_gap(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.skipif(not can_compile(), reason="this torch cannot trace autograd in a graph")
def test_compiled_training_is_eager_training_also_while_eps_grows(
    settings: BuildSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The "eager" backend runs the captured graph as it is: what is tested is what is captured.
    monkeypatch.setattr(methods, "compiled_step", partial(methods.compiled_step, backend="eager"))
    growing = SHORT | {"epochs": 4, "eps_warmup": 3.5}  # as many radii as dynamo would not compile
    eager = weights(settings("sora", "eager", **growing))
    compiled = weights(settings("sora", "compiled", compile=True, **growing))
    assert largest_gap(eager, compiled) < 1e-5


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(256, 10))


def test_parts_of_a_batch_add_up_to_the_batch(settings: BuildSettings) -> None:
    whole = weights(settings("fgsm", "whole", **SHORT), linear())
    parts = weights(settings("fgsm", "parts", accumulate=4, **SHORT), linear())
    assert largest_gap(whole, parts) < 1e-6


@pytest.mark.slow
def test_bf16_trains_float32_weights(settings: BuildSettings, tmp_path: Path) -> None:
    config = settings("fgsm", precision="bf16", **SHORT)
    (tmp_path / "bf16.yaml").write_text(Resolved(config, {}).stored())
    # In a process of its own: some virtual machines announce AMX but do not allow it.
    env = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"}
    command = [sys.executable, "-m", "sora", "train", "--config", str(tmp_path / "bf16.yaml"), "--quiet"]
    subprocess.run(command, env=env, cwd=tmp_path, check=True, capture_output=True)
    rough = load_file(tmp_path / "run" / "model.safetensors")
    exact = weights(settings("fgsm", "exact", **SHORT))
    floats = [name for name in rough if rough[name].is_floating_point()]
    assert all(rough[name].dtype == torch.float32 for name in floats)
    assert 0 < largest_gap(exact, rough) < 1


def test_sync_bn_needs_gpus_and_changes_nothing_in_one_process(
    settings: BuildSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, asked = (weights(settings("sora", str(on), sync_bn=on, **SHORT)) for on in (False, True))
    assert largest_gap(alone, asked) == 0
    monkeypatch.setattr(run, "world", lambda: 2)
    with pytest.raises(UserError, match="--sync-bn needs GPUs"):
        run.prepare_model(settings(sync_bn=True), data.load("digits"), torch.device("cpu"), linear())


@pytest.mark.parametrize("method", ["atas", "free"])
def test_a_memory_of_one_process_is_refused_with_several(
    settings: BuildSettings, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(state, "world", lambda: 2)
    with pytest.raises(UserError, match=f"{method} stores .* with one process"):
        state.initial_state(settings(method), linear(), data.load("digits"), 96, 3)


@pytest.mark.parametrize("guard", ["stop", "rollback", "pgd"])
def test_ordinary_training_has_nothing_to_guard(settings: BuildSettings, guard: str) -> None:
    with pytest.raises(UserError, match=f"guard {guard} does not apply to benign"):
        settings("benign", guard=guard)


@pytest.mark.parametrize(
    ("asked", "there", "found"),
    [("auto", True, "cuda:3"), ("auto", False, "cpu"), ("cuda", True, "cuda:3"), ("cuda:1", True, "cuda:1")],
)
def test_each_rank_has_its_own_gpu(
    monkeypatch: pytest.MonkeyPatch, asked: str, there: bool, found: str
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert device_name(asked) == found


def test_the_stored_device_is_not_that_of_a_single_rank(settings: BuildSettings) -> None:
    train(settings(device="auto", **SHORT), quiet=True)
    stored = RunFolder(settings().folder()).read_settings()
    assert (stored.device, stored.threads) == ("cpu", 1)
