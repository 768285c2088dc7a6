from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from sora import data
from sora.data import _store
from sora.settings import recipes
from tests.data import formats
from tests.data.helpers import change_source, unpack


class Balanced(formats.Cifar10):
    """All three test images and all fifteen others are of the first three classes."""

    def __init__(self) -> None:
        super().__init__()
        self.labels = np.arange(18) % 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A CIFAR-10 of 15 + 3 images in three classes, without problems."""
    change_source("cifar10", counts={"train": 15, "test": 3}, content={})
    data.get("cifar10", given=unpack(Balanced().binary(), tmp_path / "mine"))
    store = tmp_path / "data" / "cifar10"
    name_classes(store, "a", "b", "c")
    return store


def name_classes(store: Path, *classes: str) -> None:
    _store.write_meta(store, _store.read_meta(store) | {"classes": classes})


IMAGES = Balanced().images[:15]
MEAN, STD = IMAGES.mean((0, 1, 2)) / 255, IMAGES.std((0, 1, 2)) / 255


@pytest.mark.usefixtures("folder")
def test_a_good_set_has_no_problems() -> None:
    report = data.check("cifar10", mean=MEAN.round(3).tolist(), std=STD.round(3).tolist())
    train = report.splits["train"]
    assert report.problems == []
    assert (train.images, train.per_class) == (15, [5, 5, 5])
    assert train.first_labels == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
    assert train.first_pixel == IMAGES[0, 0, 0].tolist()
    assert np.allclose(train.mean, MEAN, atol=1e-9)
    assert np.allclose(train.std, STD, atol=1e-9)


WRONG_COUNTS = "it has 15 train + 3 test images, the official set 50,000 train + 10,000 test"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("official", "problems"),
    [
        ({"counts": {"train": 50_000, "test": 10_000}}, [WRONG_COUNTS]),
        ({"content": {"train_labels": "0" * 64}}, ["train_labels.npy is not the official content"]),
    ],
)
def test_differences_from_the_official_set(official: dict[str, object], problems: list[str]) -> None:
    change_source("cifar10", **official)
    assert data.check("cifar10").problems == problems


def test_changed_bytes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a defect of the disk changes them: not the file's times, and loading does not read everything."""
    monkeypatch.setattr(_store, "listing", Mock(return_value=(folder / "verified").read_text()))
    file = folder / "test_images.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert data.check("cifar10").problems == ["test_images.npy has changed since it was built"]


@pytest.mark.usefixtures("folder")
def test_statistics_off_the_recipe() -> None:
    mean, std = ([first + 0.045, *others] for first, *others in (MEAN, STD))  # as with exchanged channels
    [wrong_mean, wrong_std] = data.check("cifar10", mean=mean, std=std).problems
    assert wrong_mean.startswith("mean is 0.")
    assert wrong_mean.endswith(f"the recipe says {MEAN[0] + 0.045:.4f} {MEAN[1]:.4f} {MEAN[2]:.4f}")
    assert wrong_std.startswith("std is 0.")
    change_source("cifar10", imagenet_statistics=True)
    assert data.check("cifar10", mean=mean, std=std).problems == []


def test_parts_of_imagenet_alone_use_its_statistics_and_imagenet100_has_other_counts() -> None:
    packed = {name: known for name in data.names() if (known := data.info(name).packed) is not None}
    imagenet = {name for name, known in packed.items() if known.imagenet_statistics}
    assert imagenet == {"tinyimagenet", "imagenet100"}
    mean = recipes.flattened("imagenet100")["mean"]
    assert {name for name in packed if recipes.flattened(name)["mean"] == mean} == imagenet
    other = packed["imagenet100"].other_counts
    assert 126_689 in other["train"]  # for the most widespread list of classes
    assert 130_000 in other["train"]  # 1,300 per class
    assert list(other["test"]) == [5_000]


@pytest.mark.parametrize(("train", "fine"), [(16, True), (15, True), (14, False), (17, False)])
@pytest.mark.usefixtures("folder")
def test_another_division_of_the_same_images(train: int, fine: bool) -> None:
    other = {"train": range(train - 1, train + 1), "test": range(3, 4)}
    change_source("cifar10", counts={"train": 12, "val": 3, "test": 3}, other_counts=other)
    assert (data.check("cifar10").problems == []) == fine


def test_empty_classes(folder: Path) -> None:
    name_classes(folder, "a", "b", "c", "unicorn")
    assert data.check("cifar10").problems == ["train has no image of unicorn", "test has no image of unicorn"]
