"""Hooks see every event of a run, in order."""

import re
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import sora
from sora.errors import UserError
from sora.runs import RunFolder
from sora.training import Hook, train
from sora.training.hooks import load_hook

EVENTS = [name for name in vars(Hook) if not name.startswith("_")]


class Everything(Hook):
    """Writes down every event with the number of steps done, or of the step it is about."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []
        for name in EVENTS:
            setattr(self, name, partial(self.note, name))

    def note(self, name: str, run: Any, *given: Any) -> None:
        self.events.append((name, given[0] if name == "on_numbers" else run.state.step))
        if name == "before_step":
            assert given[0].x.shape[0] == given[0].y.shape[0]
        elif name == "after_step":
            assert given[0].loss.dim() == 0
        elif name == "on_numbers":
            assert {"loss", "pert_align", "lr"} <= given[1].keys()
        elif name == "on_log":
            assert given[0]["step"] == run.state.step
        elif name == "on_evaluation":
            (line,) = RunFolder(run.folder.path).read_log("evals")
            assert given[0].accuracy == line["accuracy"]


def test_events_come_in_order(settings) -> None:
    hook = Everything()
    train(settings(epochs=1), hooks=[hook], quiet=True)  # three steps, a log line every two and at the end
    one = [("before_step", 0), ("after_step", 1), ("on_save_point", 1)]
    two = [("before_step", 1), ("after_step", 2)]
    two += [("on_numbers", 1), ("on_numbers", 2), ("on_log", 2), ("on_save_point", 2)]
    three = [("before_step", 2), ("after_step", 3), ("on_numbers", 3), ("on_log", 3)]
    three += [("on_evaluation", 3), ("after_epoch", 3), ("on_save_point", 3)]
    assert hook.events == [("start", 0), *one, *two, *three, ("end", 3), ("close", 3)]


def test_hooks_of_fit_are_called_and_checked() -> None:
    torch.manual_seed(0)
    images, labels = torch.randint(0, 256, (40, 1, 4, 4), dtype=torch.uint8), torch.arange(40) % 4
    pair = ((images, labels), (images[:8], labels[:8]))
    model, hook = nn.Sequential(nn.Flatten(), nn.Linear(16, 4)), Everything()
    settings = {"epochs": 1, "batch_size": 12, "holdout": 4, "attacks": ("clean",)}
    assert sora.fit(model, pair, hooks=[hook], quiet=True, **settings).n == 8
    assert hook.events[0] == ("start", 0)
    assert [name for name, _ in hook.events[-2:]] == ["end", "close"]
    with pytest.raises(UserError, match=r"hooks must be instances of sora\.training\.Hook, not function"):
        sora.fit(model, pair, hooks=[print_loss], quiet=True, **settings)  # type: ignore[list-item]


def print_loss(run: Any, out: Any) -> None:
    """No hook, although it looks like one."""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "hook 'nothing' is not of the form package.module:function"),
        ("json:nothing", "hook 'json:nothing': 'json' has no function 'nothing'"),
        ("tests.nowhere:X", "hook 'tests.nowhere:X': cannot import 'tests.nowhere': ModuleNotFoundError"),
        ("json:JSONDecodeError", "hook 'json:JSONDecodeError' cannot be created: TypeError"),
    ],
)
def test_a_bad_hook_name_is_one_line(name: str, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        load_hook(name)
