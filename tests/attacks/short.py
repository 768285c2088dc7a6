"""AutoAttack with a few iterations and queries, for tests of what happens around it."""

import importlib
from typing import Any

import pytest

auto = importlib.import_module("sora.attacks.autoattack")  # the package binds this name to the function
full_build = auto.build
ITERATIONS, QUERIES = 10, 30


def short_build(part: Any, *arguments: Any) -> Any:
    """The package's attack object with fewer iterations."""
    attack = full_build(part, *arguments)
    if part.kind == "square":
        attack.n_queries = min(part.steps, QUERIES)
    else:
        attack.n_iter = ITERATIONS
    return attack


@pytest.fixture
def short_autoattack(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of AutoAttack's parts run a few iterations."""
    monkeypatch.setattr(auto, "build", short_build)
