import os
from pathlib import Path

import numpy as np
import pytest

from sora import data
from sora.data.sources import imagenet100
from sora.errors import UserError
from tests.data import formats
from tests.data.helpers import pixels


@pytest.fixture
def three_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A set of three classes is complete: decoding a hundred would take too long here."""
    monkeypatch.setattr(imagenet100, "CLASSES", 3)


def _photos(classes: int, n: int) -> dict[tuple[int, int], bytes]:
    """JPEGs of many shapes, some grey."""
    photos = {}
    for c in range(classes):
        for i in range(n):
            size = (300 + 40 * i, 320, 3) if i % 2 else (280, 400 + 20 * c)
            photos[c, i] = formats.png(np.full(size, 30 * c + i, np.uint8), "JPEG")
    return photos


def _check_imagenet100(found: data.Dataset) -> None:
    assert found.train.images.shape[1:] == (256, 256, 3)
    assert found.test.images.shape[1:] == (224, 224, 3)
    assert found.image_size == (224, 224)
    assert np.allclose(pixels(found.train).mean((1, 2, 3)) // 30, found.train.labels.numpy())
    assert np.allclose(pixels(found.test).mean((1, 2, 3)) // 30, found.test.labels.numpy())


@pytest.mark.usefixtures("three_classes")
def test_imagenet100_from_class_folders(tmp_path: Path) -> None:
    for (c, i), photo in _photos(3, 6).items():
        file = tmp_path / "tree" / ("train" if i < 4 else "val") / f"n0000000{c}" / f"x_{i}.JPEG"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(photo)
    found = data.get("imagenet100", given=tmp_path / "tree")
    assert found.classes == ("n00000000", "n00000001", "n00000002")
    assert (len(found.train), len(found.test), found.val) == (12, 6, None)
    _check_imagenet100(found)
    parts = data.split(found, holdout=3)
    assert parts.holdout.images.shape[1:] == (224, 224, 3)


@pytest.mark.usefixtures("three_classes")
@pytest.mark.parametrize("names", ["classes", "text"])
def test_imagenet100_from_parquet(tmp_path: Path, names: str) -> None:
    classes = ["wombat", "tick", "hen"]
    parts = {"train-0": range(2), "train-1": range(2, 4), "validation-0": range(4, 5), "test-0": range(5, 6)}
    for name, numbers in parts.items():
        rows = [(c, photo) for (c, i), photo in _photos(3, 6).items() if i in numbers]
        labels, images = zip(*rows, strict=True)
        file = tmp_path / "data" / f"{name}.parquet"
        formats.parquet(file, images, labels, row_group_size=2, **{names: classes})
    found = data.get("imagenet100", root=tmp_path / "root", given=tmp_path / "data")
    assert found.classes == tuple(classes)
    assert found.val is not None
    assert (len(found.train), len(found.val), len(found.test)) == (12, 3, 3)
    _check_imagenet100(found)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PAR1 and nothing more", "is not a parquet file"),
        (b"", "is not a parquet file"),
        (b"PAR1", "is not a parquet file"),
        (b"PAR1" + bytes(100) + b"PAR1", "is not a parquet file"),
        (b"PAR1\xff\xff\xff\x7fPAR1", "is not a parquet file"),
        ("columns", "expected image and label"),
        ("splits", "expected train-"),
    ],
)
def test_parquet_files_of_something_else(tmp_path: Path, content: bytes | str, message: str) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    (tmp_path / "mine").mkdir()
    for split in ("train", "test") if content != "splits" else ("numbers",):
        file = tmp_path / "mine" / f"{split}-00000-of-00001.parquet"
        if isinstance(content, bytes):
            file.write_bytes(content)
        elif content == "columns":
            parquet.write_table(pa.table({"x": range(5)}), file)
        else:
            formats.parquet(file, [os.urandom(100)] * 3)
    with pytest.raises(UserError, match=message) as caught:
        data.get("imagenet100", given=tmp_path / "mine")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", ["folders", "parquet"])
def test_another_number_of_classes_is_refused_before_anything_is_decoded(tmp_path: Path, form: str) -> None:
    for split in ("train", "val"):
        if form == "parquet":
            formats.parquet(tmp_path / "hf" / f"{split}-0.parquet", [b"no image"] * 4, [0, 1, 2, 3])
        for c in range(4) if form == "folders" else ():
            file = tmp_path / "hf" / split / f"n{c}" / "x.JPEG"
            file.parent.mkdir(parents=True)
            file.write_bytes(b"no image")
    with pytest.raises(UserError, match="has 4 classes, imagenet100 has 100"):
        data.get("imagenet100", root=tmp_path / "root", given=tmp_path / "hf")
