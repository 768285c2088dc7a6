from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from sora import data
from sora.data import _sources
from tests.data import formats
from tests.data.helpers import unpack


class Balanced(formats.Cifar10):
    """All three test images and all fifteen others are of the first three classes."""

    def __init__(self) -> None:
        super().__init__()
        self.labels = np.arange(18) % 3


def change_source(monkeypatch: pytest.MonkeyPatch, **changes: object) -> None:
    changed = dataclasses.replace(_sources.SOURCES["cifar10"], **changes)
    monkeypatch.setitem(_sources.SOURCES, "cifar10", changed)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CIFAR-10 of 15 + 3 images in three classes, with which all is well."""
    change_source(monkeypatch, counts={"train": 15, "test": 3}, content={})
    data.get("cifar10", given=unpack(Balanced().binary(), tmp_path / "mine"))
    meta = tmp_path / "data" / "cifar10" / "meta.json"
    meta.write_text(json.dumps({**json.loads(meta.read_text()), "classes": ["a", "b", "c"]}))
    return meta.parent


def test_a_good_set_has_no_problems(folder: Path) -> None:
    images = Balanced().images[:15]
    report = data.check("cifar10", mean=[0.5] * 3, std=[0.289] * 3)
    train = report.splits["train"]
    assert report.problems == []
    assert (train.images, train.per_class) == (15, [5, 5, 5])
    assert train.first_labels == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
    assert train.first_pixel == images[0, 0, 0].tolist()
    assert np.allclose(train.mean, images.mean((0, 1, 2)) / 255, atol=1e-9)
    assert np.allclose(train.std, images.std((0, 1, 2)) / 255, atol=1e-9)


def test_wrong_counts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change_source(monkeypatch, counts={"train": 50_000, "test": 10_000})
    expected = "it has 15 train + 3 test images, the official set 50,000 train + 10,000 test"
    assert data.check("cifar10").problems == [expected]


def test_changed_bytes(folder: Path) -> None:
    file = folder / "test_images.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert data.check("cifar10").problems == ["test_images.npy has changed since it was built"]


def test_content_that_is_not_the_official_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change_source(monkeypatch, content={"train_labels": "0" * 64})
    assert data.check("cifar10").problems == ["train_labels.npy is not the official content"]


def test_statistics_off_the_recipe(folder: Path) -> None:
    [mean, std] = data.check("cifar10", mean=[0.1, 0.5, 0.5], std=[0.289, 0.289, 0.9]).problems
    assert mean.startswith("mean is 0.")
    assert mean.endswith("the recipe says 0.1000 0.5000 0.5000")
    assert std.startswith("std is 0.")


def test_empty_classes(folder: Path) -> None:
    meta = folder / "meta.json"
    meta.write_text(json.dumps({**json.loads(meta.read_text()), "classes": ["a", "b", "c", "unicorn"]}))
    assert data.check("cifar10").problems == ["train has no image of unicorn", "test has no image of unicorn"]


def test_sets_without_official_numbers() -> None:
    assert data.check("digits").problems == []
