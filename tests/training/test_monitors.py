"""Monitors see the training without touching it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sora import data
from sora.errors import UserError
from sora.evaluation.diagnostics import DIAGNOSTICS, diagnose
from sora.threat import Linf
from sora.training import train
from sora.training.config import TrainConfig
from sora.training.monitors import Monitors

Settings = Callable[..., TrainConfig]

ALL = tuple(DIAGNOSTICS)
THREAT = Linf(0.1)


def small(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Dropout(0.5), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(4 * 36, 10))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(12, 1, 8, 8, generator=generator), torch.arange(12) % 10


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def test_weights_are_byte_identical_with_and_without_monitors(settings: Settings) -> None:
    plain, watched = settings(out="plain"), settings(out="watched", monitor=ALL, monitor_every=1)
    train(plain, quiet=True)
    train(watched, quiet=True)
    one, other = (config.folder() / "model.safetensors" for config in (plain, watched))
    assert one.read_bytes() == other.read_bytes()
    assert len(lines(watched.folder(), "monitors")) == len(
        {row["step"] for row in lines(watched.folder(), "monitors")}
    )
    assert lines(plain.folder(), "monitors") == []


def test_rows_are_written_at_the_steps_asked_for(settings: Settings) -> None:
    config = settings(monitor="kl,pgd", monitor_every=4)
    train(config, quiet=True)
    rows = lines(config.folder(), "monitors")
    assert [row["step"] for row in rows] == [4, 8]
    assert all(row.keys() == {"step", "epoch", "attempt", "pert_align", "kl", "pgd", "n"} for row in rows)
    assert all(0 <= row["pgd"] <= 1 and row["kl"] >= 0 and row["n"] == 20 for row in rows)


def test_no_extra_pass_when_off() -> None:
    calls = []
    model = small()
    model.register_forward_hook(lambda *_: calls.append(1))
    x, y = batch()
    images = data.ImageSet((x * 255).byte().permute(0, 2, 3, 1), y)
    off = Monitors((), 1, images, THREAT, torch.device("cpu"))
    assert not any(off.due(step) for step in range(100))
    on = Monitors(("aae",), 2, images, THREAT, torch.device("cpu"))
    assert [step for step in range(1, 7) if on.due(step)] == [2, 4, 6]
    on.look(model)
    assert len(calls) == 2  # at x and at the FGSM example


def test_training_makes_only_the_methods_own_passes_when_off(settings: Settings) -> None:
    modes: dict[str, list[bool]] = {"off": [], "on": []}
    for name, monitor in (("off", ()), ("on", ("kl",))):
        model = nn.Sequential(nn.Flatten(), nn.Linear(256, 10))
        model.register_forward_hook(lambda module, *_, seen=modes[name]: seen.append(module.training))
        known = {"eval_every": 0, "attacks": ("clean",), "monitor": monitor, "monitor_every": 3}
        train(settings("fgsm", out=name, **known), model=model, quiet=True)
    steps = 9
    assert modes["off"].count(True) == modes["on"].count(True) == 2 * steps
    assert False not in modes["off"][: 2 * steps]  # what follows is the test set
    assert modes["on"].count(False) == modes["off"].count(False) + 2 * (steps // 3)


def test_looking_leaves_model_mode_flags_buffers_and_random_stream() -> None:
    model, (x, y) = small().train(), batch()
    model[0].bias.requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    stream = torch.get_rng_state()
    first = diagnose(model, x, y, THREAT)
    assert torch.equal(stream, torch.get_rng_state())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert [p.requires_grad for p in model.parameters()] == [True, False, True, True, True, True]
    assert all(p.grad is None for p in model.parameters())
    assert diagnose(model, x, y, THREAT) == first  # same images, same noise, same numbers


def test_numbers_follow_their_definitions() -> None:
    model, (x, y) = small().eval(), batch()
    found = diagnose(model, x, y, THREAT)
    leaf = x.clone().requires_grad_()
    F.cross_entropy(model(leaf), y).backward()
    assert leaf.grad is not None
    x_adv = (x + 0.1 * leaf.grad.sign()).clamp(0, 1)
    with torch.no_grad():
        clean, adversarial = model(x), model(x_adv)
    losses = [F.cross_entropy(logits, y, reduction="none") for logits in (clean, adversarial)]
    p, q = clean.softmax(1), adversarial.softmax(1)
    assert found["aae"] == pytest.approx((losses[0] > losses[1]).float().mean().item())
    assert found["kl"] == pytest.approx((p * (p / q).log()).sum(1).mean().item(), rel=1e-4)
    assert found["fgsm"] == pytest.approx((adversarial.argmax(1) == y).float().mean().item())
    other = x_adv.clone().requires_grad_()
    F.cross_entropy(model(other), y).backward()
    assert other.grad is not None
    cosine = F.cosine_similarity(leaf.grad.flatten(1) * 1e3, other.grad.flatten(1) * 1e3)
    assert found["pertalign"] == pytest.approx(cosine.mean().item(), abs=1e-5)


def test_a_linear_model_is_straight_in_every_number() -> None:
    torch.manual_seed(0)
    model, (x, y) = nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), batch()
    found = diagnose(model, x, y % 2, THREAT, ("gradalign", "pertalign", "elle", "aae"))
    assert found["gradalign"] == pytest.approx(1, abs=1e-5)
    assert found["pertalign"] == pytest.approx(1, abs=1e-5)
    assert found["aae"] == 0
    assert 0 <= found["elle"] < 1e-2
    assert not math.isnan(found["elle"])


def test_wrong_names_and_missing_slice_are_refused(settings: Settings) -> None:
    with pytest.raises(UserError, match="unknown monitor 'gradalig'; did you mean 'gradalign'"):
        settings(monitor="gradalig")
    with pytest.raises(UserError, match="--holdout 0 leaves none"):
        train(settings(monitor="kl", holdout=0), quiet=True)
