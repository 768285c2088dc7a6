"""A run small enough to be repeated in every test."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sora.settings import Request, Settings

SMALL = {
    "dataset": "digits",
    "epochs": 3,
    "batch_size": 32,
    "width": 4,
    "limit_train": 96,
    "limit_test": 40,
    "holdout": 20,
    "log_every": 2,
    "checkpoint_every": 2,
    "attacks": ("clean", "fgsm", "pgd10"),
    "threads": 1,
}

BuildSettings = Callable[..., Settings]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def settings(tmp_path: Path) -> BuildSettings:
    """`settings("fgsm", out="a", epochs=2)` is a small run in this test's own folder."""

    def build(method: str = "sora", out: str = "run", **changes: Any) -> Settings:
        options = {} if "model" in changes else {"model.stages": 1}
        given = {**SMALL, "method": method, "out": str(tmp_path / out)} | changes
        given["set"] = options | changes.get("set", {})
        return Request(given).resolve().settings

    return build
