"""Checksums of files and models, computed once and again after a change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn

from sora.runs import digest_file, digest_model
from sora.runs import weights as digests


def test_a_model_is_hashed_again_only_after_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = []
    original = digests._bytes_of
    monkeypatch.setattr(digests, "_bytes_of", lambda tensor: hashed.append(tensor) or original(tensor))
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    first = digest_model(model)
    assert len(hashed) == len(model.state_dict())
    assert first == digest_model(model)
    assert len(hashed) == len(model.state_dict())
    model(torch.rand(4, 2))  # changes the running averages
    second = digest_model(model)
    model[0].weight = nn.Parameter(torch.zeros(2, 2))
    third = digest_model(model)
    model[0].weight.data.fill_(1)  # which torch does not count
    assert digest_model(model) == third
    assert len({first, second, third, digest_model(model, again=True)}) == 4


def test_a_file_is_hashed_again_only_after_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, opened = tmp_path / "file", []
    original = digests.open_regular
    monkeypatch.setattr(digests, "open_regular", lambda path: opened.append(path) or original(path))
    monkeypatch.setattr(digests.time, "time_ns", lambda: file.stat().st_ctime_ns + 2 * digests._SETTLED)
    file.write_bytes(b"a")
    first = digest_file(file)
    assert digest_file(file) == first
    assert len(opened) == 1
    file.write_bytes(b"b")
    os.utime(file, ns=(0, 0))
    assert digest_file(file) != first


def test_a_file_that_may_change_unnoticed_is_read_every_time(tmp_path: Path) -> None:
    file = tmp_path / "file"
    seen = set()
    for number in range(9):  # so fast that some have the same time stamp
        file.write_text(str(number))
        seen.add(digest_file(file))
    assert len(seen) == 9
