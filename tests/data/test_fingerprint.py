"""`Dataset.fingerprint`: the same for the same images and labels, different for any others."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from sora import data
from sora.data import Dataset, ImageSet, _store
from sora.data import builder as pack
from tests.data import formats


def images(n: int = 30, seed: int = 0) -> ImageSet:
    return ImageSet(torch.from_numpy(formats.noise(n, 4, 4, 3, seed=seed)), torch.arange(n) % 3)


def dataset(**changes: object) -> Dataset:
    made = Dataset("toy", images(), images(6, seed=1), None, ("a", "b", "c"))
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def test_it_is_short_stable_and_independent_of_names() -> None:
    assert dataset().fingerprint == dataset(name="other", classes=("x", "y", "z")).fingerprint
    assert len(dataset().fingerprint) == 16
    few = ImageSet(torch.arange(48, dtype=torch.uint8).view(4, 2, 2, 3), torch.arange(4))
    fixed = dataset(train=few, test=few, classes=tuple("abcd")).fingerprint
    assert fixed == "86e9948ac94a855c"  # recorded in run folders, so later versions must compute the same
    assert data.load("digits").fingerprint == data.load("digits").fingerprint


def test_any_change_of_the_data_changes_it_and_a_view_equals_a_copy() -> None:
    changed = images()
    changed.images[7, 1, 2, 0] ^= 1
    other_label = images().labels.clone()
    other_label[3] = 2
    variants = [
        dataset(),
        dataset(train=changed),
        dataset(train=dataclasses.replace(images(), labels=other_label)),
        dataset(train=images().subset(torch.arange(29))),
        dataset(train=images().subset(torch.arange(30).flip(0))),
        dataset(train=images().center(2, 2)),
        dataset(val=images(6, seed=1)),
        dataset(train=images(6, seed=1), test=images()),
    ]
    assert len({variant.fingerprint for variant in variants}) == len(variants)
    view = images().subset(torch.tensor([5, 2, 9])).center(2, 2)
    copy = ImageSet(view.gather(torch.arange(3)).permute(0, 2, 3, 1).contiguous(), view.labels)
    assert view.fingerprint == copy.fingerprint


def fill(builder: data.Builder) -> None:
    builder.add("train", data.Arrays(formats.noise(30, 4, 4, 3), np.arange(30) % 3))
    builder.add("test", data.Arrays(formats.noise(6, 4, 4, 3, seed=1), np.arange(6) % 3))
    builder.finish(["a", "b", "c"])


@pytest.mark.parametrize("budget", [0, 1 << 30])
def test_a_packed_store_uses_its_recorded_hashes(tmp_path: Path, monkeypatch, budget: int) -> None:
    folder = pack.build(tmp_path, "toy", "x", fill)
    elsewhere = pack.build(tmp_path / "elsewhere", "toy", "y", fill)
    expected = _store.open_store(elsewhere, "toy").fingerprint
    monkeypatch.setattr(_store, "MEMORY_BUDGET", budget)
    opened = _store.open_store(folder, "toy")
    monkeypatch.setattr(ImageSet, "gather", None)  # no image is read
    assert opened.fingerprint == expected
    few = dataclasses.replace(opened, train=opened.train.subset(torch.arange(29)))
    small = dataclasses.replace(opened, test=opened.test.center(2, 2))
    assert len({opened.fingerprint, few.fingerprint, small.fingerprint}) == 3
