"""A run small enough to be repeated many times: 96 digits, a network of a few thousand weights."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sora import methods
from sora.settings import Request, Settings
from sora.training.alarms import Alarms
from tests.training.scripted import CALM, Script, Scripted, Unlucky, scripted_look

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


@pytest.fixture(autouse=True)
def _own_methods(_registries_as_before: None) -> Iterator[None]:
    """The tests' own methods, known by name during a test only, and a second look that follows the script."""
    methods.register("scripted", "FGSM with a scripted PertAlign", in_all=False)(Scripted)
    methods.register("unlucky", "FGSM with one loss that is not finite", in_all=False)(Unlucky)
    with pytest.MonkeyPatch.context() as patch:  # a test may undo its own
        patch.setattr(Alarms, "look", scripted_look)
        yield
    Scripted.script = staticmethod(lambda attempt, step: CALM)


@pytest.fixture
def script() -> Callable[[Script], None]:
    """Sets the PertAlign that the method `scripted` reports."""

    def install(values: Script) -> None:
        Scripted.script = staticmethod(values)

    return install


@pytest.fixture
def settings(tmp_path: Path) -> BuildSettings:
    """`settings("fgsm", out="a", epochs=2)` is a small run in this test's own folder."""

    def build(method: str = "sora", out: str = "run", **changes: Any) -> Settings:
        options = {} if "model" in changes else {"model.stages": 1}
        given = {**SMALL, "method": method, "out": str(tmp_path / out)} | changes
        given["set"] = options | changes.get("set", {})
        return Request(given).resolve().settings

    return build
