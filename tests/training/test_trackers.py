"""A tracker's record equals the run's logs, also after a kill; one that fails changes nothing."""

import json
import math
import signal
import struct
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import sora
from sora.errors import UserError
from sora.runs import RunFolder
from sora.training import Hook, Interrupted, trackers, train
from tests.training.helpers import (
    Killed,
    SignalAfter,
    contents,
    kill_at,
    train_killed_at,
)

Rows = dict[str, list[tuple[int, float]]]
PLACE = ("step", "epoch", "attempt")


def read_tensorboard(folder: RunFolder) -> tuple[Rows, dict[str, list[str]]]:
    """Numbers and texts by name, as TensorBoard shows them."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    util = pytest.importorskip("tensorboard.util.tensor_util")
    found = accumulator.EventAccumulator(str(folder.tensorboard), size_guidance={"tensors": 0})
    found.Reload()
    numbers: Rows = {}
    texts: dict[str, list[str]] = {}
    for name in found.Tags()["tensors"]:
        for event in found.Tensors(name):
            value = util.make_ndarray(event.tensor_proto)
            if value.dtype == object:
                texts.setdefault(name.removesuffix("/text_summary"), []).append(value.item().decode())
            else:
                numbers.setdefault(name, []).append((event.step, value.item()))
    return numbers, texts


def read_wandb(folder: RunFolder) -> tuple[Rows, dict[str, list[str]]]:
    """Numbers and texts by name in the newest offline record, which is complete."""
    proto = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    newest = max(folder.wandb.glob("offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime)
    numbers: Rows = {}
    texts: dict[str, list[str]] = {}
    for record in map(proto.Record.FromString, read_leveldb_log(newest.read_bytes(), first=7)):
        row = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        for name in row:
            if "/" in name:
                numbers.setdefault(name, []).append((row["step"], row[name]))
        for item in record.summary.update:
            texts[item.key or item.nested_key[0]] = [item.value_json]
    return numbers, texts


def read_leveldb_log(data: bytes, first: int) -> Iterator[bytes]:
    """The records of a log of LevelDB's format, whose first block begins with another header."""
    at, record = first, b""
    while at + 7 <= len(data):
        room = 32768 - at % 32768
        if room < 7:  # no header fits into the rest of a block
            at += room
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or its last part
            yield record
            record = b""


def expected(folder: RunFolder) -> Rows:
    """What the logs hold, by the name a tracker gives it."""
    rows: Rows = {}

    def add(kind: str, line: dict[str, Any], values: dict[str, Any]) -> None:
        attempt = f", attempt {line['attempt'] + 1}" if line["attempt"] else ""
        for name in values.keys() - set(PLACE):
            if values[name] is not None and not math.isnan(values[name]):
                rows.setdefault(f"{kind}/{name}{attempt}", []).append((line["step"], values[name]))

    for line in folder.read_log("metrics"):
        add("train", line, line)
    for line in folder.read_log("evals"):
        add("holdout", line, line["accuracy"])
    last = folder.read_log("metrics")[-1]
    add("test", last, folder.read_summary()["accuracy"])
    return rows


@pytest.fixture(params=["tensorboard", "wandb"])
def tracker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    pytest.importorskip(request.param)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    return str(request.param)


READERS = {"tensorboard": read_tensorboard, "wandb": read_wandb}


def test_the_record_equals_the_logs_after_a_kill(settings, trained, tracker) -> None:
    given = settings(tracker=(tracker,))
    train_killed_at(given, [5])
    folder = RunFolder(given.folder())
    numbers, texts = READERS[tracker](folder)
    assert numbers == expected(folder)
    assert "| pgd10 |" in texts["result"][0]
    assert "verdict: " in texts["result"][0]
    assert contents(given) == contents(trained())


class Kept:
    """A record in memory."""

    def __init__(self, run: Any) -> None:
        self.lines: list[tuple[Any, ...]] = []

    def numbers(self, step: int, values: Any) -> None:
        self.lines.append((step, values))

    def text(self, name: str, text: str, step: int | None = None) -> None:
        self.lines.append((step, name, text))

    def close(self, finished: bool) -> None:
        self.lines.append((finished,))


def test_alarms_and_later_attempts_are_recorded(monkeypatch, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.log_path("metrics").write_text('{"step": 2, "epoch": 1, "attempt": 0, "loss": 0.5}\n')
    folder.log_path("events").write_text('{"event": "alarm", "step": 2}\n')
    run: Any = SimpleNamespace(folder=folder, writes=True, splits=SimpleNamespace(watched_name="holdout"))
    monkeypatch.setitem(trackers.TRACKERS, "wandb", Kept)
    monkeypatch.setattr(trackers, "find_spec", lambda name: True)
    tracker = trackers.Tracker("wandb")
    tracker.start(run)
    kept: Any = tracker._record
    tracker.on_log(run, {"step": 2, "epoch": 1, "attempt": 1, "loss": math.nan, "lr": 0.1})
    tracker.on_event(run, {"event": "recovered", "step": 4})
    tracker.close(run)
    tracker.close(run)
    first = [(2, {"train/loss": 0.5}), (2, "events", 'alarm: `{"event": "alarm", "step": 2}`')]
    then = [
        (2, {"train/lr, attempt 2": 0.1}),
        (4, "events", 'recovered: `{"event": "recovered", "step": 4}`'),
    ]
    assert kept.lines == [*first, *then, (False,)]


class Broken(Kept):
    """A record whose server is gone from the fifth step on."""

    closed = 0

    def numbers(self, step: int, values: Any) -> None:
        if step >= 5:
            raise ConnectionError("no route\nto host")

    def close(self, finished: bool) -> None:
        type(self).closed += 1
        raise ConnectionError("no route to host")


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Broken]]:
    monkeypatch.setitem(trackers.TRACKERS, "wandb", Broken)
    monkeypatch.setattr(trackers, "find_spec", lambda name: True)
    Broken.closed = 0
    return Broken


def test_a_tracker_that_fails_is_one_warning(settings, trained, broken, capsys) -> None:
    given = settings(tracker=("wandb",))
    train(given)
    message = "tracker wandb failed, training goes on without it (ConnectionError: no route to host)"
    assert capsys.readouterr().err.count(message) == 1
    assert broken.closed == 1
    assert contents(given) == contents(trained())


class Closing(Hook):
    """Counts how often it is closed."""

    closed = 0

    def close(self, run: Any) -> None:
        self.closed += 1


@pytest.mark.parametrize(
    ("stop", "error"), [(kill_at(2), Killed), (SignalAfter(2, signal.SIGTERM), Interrupted)]
)
def test_hooks_are_closed_in_every_case(settings, stop, error) -> None:
    hook = Closing()
    with pytest.raises(error):
        train(settings(), hooks=[hook, stop], quiet=True)
    assert hook.closed == 1
    train(settings(), hooks=[hook], quiet=True)
    assert hook.closed == 2


def test_bad_trackers_are_one_line(settings, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"^tracker wandb is not installed: pip install 'sora-at\[wandb\]'$"):
        train(settings(tracker=("wandb",)), quiet=True)
    assert not settings().folder().exists()
    with pytest.raises(UserError, match="tracker is 'tensorbord'; did you mean 'tensorboard'"):
        settings(tracker="tensorbord")
    model, data = nn.Flatten(), torch.zeros(8, 1, 2, 2, dtype=torch.uint8)
    pair = (data, torch.arange(8) % 4)
    with pytest.raises(UserError, match="trackers write to the run folder; pass out="):
        sora.fit(model, (pair, pair), trackers=["wandb"])
