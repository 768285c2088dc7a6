"""Nothing in data is run, nothing is written outside the data folder, nothing unpacks without end."""

import io
import pickle
import tarfile
import warnings
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from sora import data
from sora.data import image_files as images
from sora.data._archives import open_archive
from sora.data.npz import ImageArchive
from sora.errors import UserError
from tests.data import formats
from tests.data.formats import Evil
from tests.data.helpers import damaged_bytes


def refuse(path: Path, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        [read() for read in open_archive(path).values()]
    assert "\n" not in str(caught.value)


def test_malicious_pickles_run_nothing(tmp_path: Path) -> None:
    target, mine = tmp_path / "evil", tmp_path / "mine"
    mine.mkdir()
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        attack = pickle.dumps({"data": Evil(target), "labels": [1], "label_names": ["a"]}, protocol)
        for name in ("batches.meta", "data_batch_1", "test_batch"):
            (mine / name).write_bytes(attack)
        with pytest.raises(UserError, match="not a CIFAR batch"):
            data.get("cifar10", given=mine)
    assert not target.exists()
    assert not (tmp_path / "data" / "cifar10").exists()


@pytest.mark.parametrize(
    "name", ["../evil", "a/../../evil", "/etc/evil", "C:\\evil", "..\\evil", "\\\\host\\evil"]
)
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_members_that_point_outside(tmp_path: Path, name: str, kind: str) -> None:
    path = tmp_path / "archive"
    files = {"good.txt": b"x", name: b"evil"}
    path.write_bytes(formats.tar(files) if kind == "tar" else formats.zipped(files))
    refuse(path, "refused: its member .* points outside")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_special_files_in_a_tar(tmp_path: Path, kind: bytes) -> None:
    member = tarfile.TarInfo("innocent.bin")
    member.type, member.linkname = kind, "/etc/passwd"
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.addfile(member)
    refuse(tmp_path / "a.tar", "is a link or a special file")


@pytest.mark.parametrize("kind", ["tar", "zip", "npz"])
def test_bombs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setenv("SORA_MAX_UNPACKED", str(1 << 20))
    path = tmp_path / "bomb"
    files = {f"{i}.bin": bytes(600_000) for i in range(4)}
    zeros = np.zeros((2000, 28, 28), np.uint8)
    path.write_bytes(
        {
            "tar": formats.tar(files),
            "zip": formats.zipped(files),
            "npz": formats.npz(x_train=zeros, y_train=np.zeros(2000, int)),
        }[kind]
    )
    refuse(path, "unpacks to more than")
    if kind == "npz":
        with pytest.raises(UserError, match="unpacks to more than"):
            data.load(f"npz:{path}")


def test_a_zip_with_a_link_and_one_that_lies_about_its_size(tmp_path: Path) -> None:
    member = zipfile.ZipInfo("innocent.bin")
    member.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr(member, "/etc/passwd")
    refuse(tmp_path / "b.zip", "is a link or a special file")
    content = formats.zipped({"a.bin": bytes(1000)})
    honest = (1000).to_bytes(4, "little")
    assert content.count(honest) == 2  # once at the member, once in the directory
    (tmp_path / "a.zip").write_bytes(content.replace(honest, (10).to_bytes(4, "little")))
    refuse(tmp_path / "a.zip", "damaged")


@pytest.mark.parametrize("kind", ["tar", "zip", "text", "empty", "gzip"])
def test_damaged_archives(tmp_path: Path, kind: str) -> None:
    noise = formats.noise(1, 50_000).tobytes()
    whole = formats.zipped({"a": noise}) if kind == "zip" else formats.tar({"a": noise})
    contents = {"text": b"hello", "empty": b"", "gzip": b"\x1f\x8b" + noise[:100], "tar": whole[:-20_000]}
    contents["zip"] = whole[:1000] + bytes(20) + whole[1020:]
    (tmp_path / "x").write_bytes(contents[kind])
    refuse(tmp_path / "x", "damaged|not a readable")


def test_npz_with_objects_runs_nothing(tmp_path: Path) -> None:
    target = tmp_path / "evil"
    objects = np.array([Evil(target)], dtype=object)
    np.savez(tmp_path / "x.npz", train_images=objects, train_labels=np.zeros(1, int))
    with pytest.raises(
        UserError, match="not an npz file of plain arrays: Object arrays cannot be loaded"
    ) as caught:
        data.load(f"npz:{tmp_path / 'x.npz'}")
    assert "\n" not in str(caught.value)
    assert not target.exists()


def test_images_that_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, deep = formats.png(formats.noise(1, 64, 64, 3)[0]), io.BytesIO()
    images.Image.fromarray(np.full((4, 4), 40_000, np.uint16)).save(deep, "PNG")
    for content, message in (
        (b"GIF? no", "not an image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", "not an image"),
        (whole[: len(whole) // 2], "."),  # whatever Pillow says
        (deep.getvalue(), "more than 8 bits"),
    ):
        with pytest.raises(UserError, match=message):
            images.decode(content)
    monkeypatch.setenv("SORA_MAX_PIXELS", "1000")
    message = "64x64 pixels exceeds the limit of 1,000 pixels; set SORA_MAX_PIXELS"
    with pytest.raises(UserError, match=message):
        images.decode(whole)


def test_a_picture_bomb_is_refused_before_it_is_decoded() -> None:
    header = formats.png(np.zeros((1, 1, 3), np.uint8))
    at = header.index(b"IHDR") + 4
    body = (30_000).to_bytes(4, "big") * 2 + header[at + 8 : at + 13]
    check = zlib.crc32(b"IHDR" + body).to_bytes(4, "big")
    bomb = header[:at] + body + check + header[at + 17 :]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(UserError, match=r"exceed the limit|exceeds limit"):
            images.decode(bomb)


def test_decoding_by_mode_and_size() -> None:
    colour, grey = formats.noise(1, 40, 60, 3)[0], formats.noise(1, 40, 60)[0]
    assert np.array_equal(images.decode(formats.png(colour)), colour)
    assert np.array_equal(images.decode(formats.png(grey)), grey[..., None])
    assert np.array_equal(images.decode(formats.png(grey), mode="rgb"), np.stack([grey] * 3, 2))
    assert images.decode(formats.png(colour), mode="grey").shape == (40, 60, 1)
    flat = np.full((50, 80, 3), 77, np.uint8)
    assert np.array_equal(images.decode(formats.png(flat), size=32), np.full((32, 32, 3), 77, np.uint8))
    assert np.array_equal(images.decode(formats.png(colour), size=40), colour[:, 10:50])


def test_every_damaged_byte_of_an_archive_is_noticed_or_harmless(tmp_path: Path) -> None:
    """`zipfile` raises many kinds of exceptions, `NotImplementedError` for a version that does not exist."""
    path = tmp_path / "x.npz"
    pixels, labels = np.zeros((4, 4, 4, 1), np.uint8), np.arange(4) % 2
    np.savez_compressed(
        path, train_images=pixels, train_labels=labels, test_images=pixels, test_labels=labels
    )
    size = path.stat().st_size
    refused = 0
    for _ in damaged_bytes(path):
        try:  # any other exception would reach the user as it is
            archive = ImageArchive(path)
            assert archive.labels.keys() == {"train", "test"}
            assert len(archive.headers) == 4
        except UserError:
            refused += 1
    assert refused > size / 4
