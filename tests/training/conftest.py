"""A run small enough to be repeated many times: 96 digits, a model of a few thousand weights."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sora import methods
from sora.settings import Request, Settings
from sora.training import train
from sora.training.alarms import Alarms
from tests.training.helpers import CALM, BuildSettings, Script, Scripted, Unlucky, scripted_look

SMALL = {"dataset": "digits", "epochs": 3, "batch_size": 32, "width": 4, "limit_train": 96, "limit_test": 40}
SMALL |= {"holdout": 20, "log_every": 2, "checkpoint_every": 2, "attacks": ("clean", "fgsm", "pgd10")}
SMALL |= {"threads": 1}


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
        patch.setattr(Alarms, "ratio", scripted_look)  # a collapse in both
        yield
    Scripted.script = staticmethod(lambda attempt, step: CALM)


@pytest.fixture
def script() -> Callable[[Script], None]:
    """Sets the PertAlign that the method `scripted` reports."""

    def install(values: Script) -> None:
        Scripted.script = staticmethod(values)

    return install


def small_settings(out: Path, method: str, changes: dict[str, Any]) -> Settings:
    options = {} if "model" in changes else {"model.stages": 1}
    given = {**SMALL, "method": method, "out": str(out)} | changes
    given["set"] = options | changes.get("set", {})
    return Request(given).resolve().settings


@pytest.fixture
def settings(tmp_path: Path) -> BuildSettings:
    """`settings("fgsm", out="a", epochs=2)` is a small run in this test's own folder."""

    def build(method: str = "sora", out: str = "run", **changes: Any) -> Settings:
        return small_settings(tmp_path / out, method, changes)

    return build


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> BuildSettings:
    """`trained("fgsm", epochs=2)` is a finished small run, trained once for all tests; none may change it."""
    folder, finished = tmp_path_factory.mktemp("trained"), dict[str, Settings]()

    def build(method: str = "sora", **changes: Any) -> Settings:
        key = json.dumps([method, changes], sort_keys=True)
        if key not in finished:
            finished[key] = small_settings(folder / str(len(finished)), method, changes)
            train(finished[key], quiet=True)
        return finished[key]

    return build
