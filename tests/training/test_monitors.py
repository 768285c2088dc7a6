"""Monitors see the training without touching it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sora import data, metrics
from sora.errors import UserError
from sora.threat import Linf
from sora.training import train
from sora.training.config import TrainConfig
from sora.training.monitors import Monitors

Settings = Callable[..., TrainConfig]

ALL = tuple(metrics.names())
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


def test_wrong_names_and_missing_slice_are_refused(settings: Settings) -> None:
    with pytest.raises(UserError, match="unknown metric 'gradalig'; did you mean 'gradalign'"):
        settings(monitor="gradalig")
    with pytest.raises(UserError, match="--holdout 0 leaves none"):
        train(settings(monitor="kl", holdout=0), quiet=True)
