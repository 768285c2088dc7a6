"""Methods without PertAlign are watched through a few images, cheaply and without disturbing training."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sora import methods, metrics
from sora.runs import RunFolder
from sora.settings import Settings
from sora.training import Hook, alarms, train
from tests.training.disturbances import Killed, kill_at

BuildSettings = Callable[..., Settings]
LONG = {"epochs": 8, "batch_size": 8, "eval_every": 0, "attacks": ("clean",)}  # 96 steps
WITHOUT = [
    name
    for name, entry in ((name, methods.info(name)) for name in methods.names())
    if entry.adversarial and not entry.has_pert_align
]


def looks(settings: Settings) -> list[int]:
    lines = RunFolder(settings.folder()).read_log("metrics")
    return [line["step"] for line in lines if line.get(alarms.LOOK) is not None]


@pytest.fixture
def looked(monkeypatch: Any) -> Callable[[Callable[[int, int], float]], None]:
    """Sets what each look sees, by attempt and step."""

    def install(script: Callable[[int, int], float]) -> None:
        def look_regularly(self: Any) -> None:
            state = self._run.state
            if state.step % alarms.EVERY == 0:
                self._run.journal.add(alarms.LOOK, torch.tensor(script(state.attempt, state.step)))

        monkeypatch.setattr(alarms.Alarms, "look_regularly", look_regularly)

    return install


def events(settings: Settings) -> list[tuple[str, int]]:
    return [(line["event"], line["step"]) for line in RunFolder(settings.folder()).read_log("events")]


def test_the_methods_that_need_it() -> None:
    assert WITHOUT == ["nuat", "trades", "gat"]


@pytest.mark.parametrize("method", WITHOUT)
def test_weights_are_the_same_with_and_without_it(method: str, settings: BuildSettings) -> None:
    short = LONG | {"epochs": 2}
    watched, alone = (settings(method, out=guard, guard=guard, **short) for guard in ("warn", "off"))
    for config in (watched, alone):
        train(config, quiet=True)
    one, other = (RunFolder(config.folder()).weights.read_bytes() for config in (watched, alone))
    assert one == other
    assert looks(watched) == [10, 20]
    assert looks(alone) == []


@pytest.mark.parametrize("method", ["fgsm", "benign"])
def test_others_are_not_looked_at(method: str, settings: BuildSettings) -> None:
    config = settings(method, **LONG | {"epochs": 2})
    train(config, quiet=True)
    assert looks(config) == []


def test_it_is_pert_align_of_the_watched_images(settings: BuildSettings) -> None:
    seen: list[tuple[float, float]] = []

    class Compare(Hook):
        def after_step(self, run: Any, out: Any) -> None:
            if run.state.step == 10:
                x, y = run.watched(2)  # a quarter of the batch
                measured = metrics.measure(run.state.model, x, y, run.threat, ("pertalign",))
                look = alarms.second_look(run.state.model, x, y, run.threat)
                seen.append((look.item(), measured["pertalign"]))
                assert run.state.model.training

    config = settings("nuat", log_every=1, **LONG | {"epochs": 1})
    train(config, hooks=[Compare()], quiet=True)
    (line,) = [row for row in RunFolder(config.folder()).read_log("metrics") if row["step"] == 10]
    assert seen == [(line[alarms.LOOK], line[alarms.LOOK])]


@pytest.mark.parametrize("batch_size", [8, 32, 64])
def test_its_passes_are_a_small_part_of_a_step(settings: BuildSettings, batch_size: int) -> None:
    """Counted in images passed forward; each pass of NuAT and of a look is followed by a backward pass."""
    passed: dict[str, int] = {}
    options = LONG | {"batch_size": batch_size, "epochs": math.ceil(40 / (96 // batch_size))}
    for guard in ("off", "warn"):
        images = [0]

        class Watch(Hook):
            def start(self, run: Any) -> None:
                run.state.model.register_forward_hook(self.count)

            def count(self, module: nn.Module, inputs: Any, _: Any, images: list[int] = images) -> None:
                images[0] += len(inputs[0])

            def after_step(self, run: Any, out: Any, guard: str = guard, images: list[int] = images) -> None:
                passed[guard] = images[0]  # before the test set is evaluated

        model = nn.Sequential(nn.Flatten(), nn.Linear(256, 10))
        train(settings("nuat", out=guard, guard=guard, **options), model=model, hooks=[Watch()], quiet=True)
    assert 0 < passed["warn"] / passed["off"] - 1 <= 0.05


def test_a_look_stands_for_the_steps_since_the_one_before(settings: BuildSettings, looked: Any) -> None:
    looked(lambda attempt, step: 0.8 if step < 60 else 0.0)
    config = settings("trades", **LONG)
    summary = train(config, quiet=True).summary
    assert events(config) == [("alarm", 60)]
    assert summary["co"]["watched_steps"] == 90 - 40
    assert all(math.isnan(value) for value in summary["pert_align"].values())  # those are of training steps


@pytest.mark.parametrize("action", ["stop", "rollback", "pgd"])
def test_actions_follow(settings: BuildSettings, looked: Any, action: str) -> None:
    looked(lambda attempt, step: 0.0 if attempt == 0 and 60 <= step < 80 else 0.8)
    config = settings("nuat", guard=action, log_every=4, **LONG)
    summary = train(config, quiet=True).summary
    after = {
        "stop": [("returned", 56)],
        "rollback": [("returned", 56)],
        "pgd": [("recovered", 80)],
    }
    assert events(config) == [("alarm", 60), *after[action]]
    assert summary["weights"] == ("last_good" if action == "stop" else "last")
    if action == "pgd":
        assert summary["co"]["events"][0]["changed"] == {"pgd_batches": 20}


@pytest.mark.parametrize("killed_at", [55, 63])
def test_a_killed_run_ends_with_the_same_bytes(settings: BuildSettings, looked: Any, killed_at: int) -> None:
    looked(lambda attempt, step: 0.0 if attempt == 0 and step >= 60 else 0.8)
    options = LONG | {"guard": "rollback", "log_every": 7, "checkpoint_every": 3}
    whole, broken = (settings("nuat", out=name, **options) for name in ("whole", "broken"))
    train(whole, quiet=True)
    with pytest.raises(Killed):
        train(broken, hooks=[kill_at(killed_at)], quiet=True)
    train(broken, quiet=True)
    for name in ("model.safetensors", "events.jsonl", "metrics.jsonl"):
        assert (whole.folder() / name).read_bytes() == (broken.folder() / name).read_bytes()
