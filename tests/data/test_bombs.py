"""Small files that ask for much memory or time are refused, or read within a bound."""

import json
import os
import pickle
import socket
import struct
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

from sora import data
from sora.data.image_files import decode
from sora.errors import RunError, UserError
from tests.data import formats

GIGABYTES = 0.45  # beyond the imports; decoding the large images side by side would take 0.6
LINUX = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from Linux")


def grey_png(width: int, height: int) -> bytes:
    """A black image of any size, without an array of that size."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    packer = zlib.compressobj(1)
    row = bytes(width + 1)
    body = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


READ = """
import sys
import pyarrow.parquet
import torch
from sora import data
from sora.errors import UserError
def peak():  # not `ru_maxrss`, which a child inherits from its parent
    return int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
root, imported = sys.argv[1], peak()
for name, given in (("cifar10", "cifar"), ("imagenet100", "parquet")):
    try:
        data.get(name, f"{root}/data", f"{root}/{given}")
    except UserError as error:
        print(error)
print(data.load(f"folder:{root}/photos?size=32&mode=rgb", f"{root}/data").train.images.shape)
print(peak() - imported)
"""


def folder_of(tmp_path: Path, content: bytes, count: int = 6) -> Path:
    for number in range(2 * count):
        file = tmp_path / "photos" / f"class{number % 2}" / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return tmp_path / "photos"


@LINUX
def test_bombs_and_large_images_take_little_memory(tmp_path: Path) -> None:
    """All in one process, because importing torch takes longer than reading them."""
    (tmp_path / "cifar").mkdir()
    (tmp_path / "cifar" / "batches.meta").write_bytes(PICKLES["a huge memo"])
    for split in ("train", "test"):
        file = tmp_path / "parquet" / f"{split}-0.parquet"
        formats.parquet(file, [bytes(5000)] * 20_000, compression="gzip")
        assert file.stat().st_size < 20_000  # it repeats one value
    folder_of(tmp_path, grey_png(5000, 5000), count=3)
    done = subprocess.run([sys.executable, "-c", READ, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    cifar, parquet, photos, kilobytes = done.stdout.splitlines()
    assert "contains no data_batch_1" in cifar
    assert "declares 20,000 rows" in parquet
    assert "32, 32, 3" in photos
    assert int(kilobytes) / 1e6 < GIGABYTES


def test_large_images_must_be_resized_and_thin_ones_do_not_grow_without_end(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SORA_MAX_STORED_PIXELS", "100")
    folder = folder_of(tmp_path, grey_png(12, 12))
    with pytest.raises(UserError, match=r"12x12 pixels .* SORA_MAX_STORED_PIXELS.*\?size=N"):
        data.load(f"folder:{folder}")
    assert data.load(f"folder:{folder}?size=8").image_size == (8, 8)
    monkeypatch.setenv("SORA_MAX_STORED_PIXELS", "1000")
    assert data.load(f"folder:{folder}").image_size == (12, 12)
    with pytest.raises(UserError, match=r"resized to .* exceeds the limit of .* SORA_MAX_PIXELS"):
        decode(grey_png(1, 20_000), size=256)


def test_few_images_are_held_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = data.load(f"folder:{folder_of(tmp_path, grey_png(16, 16))}", tmp_path / "whole")
    monkeypatch.setattr("sora.data.builder.CHUNK_BYTES", 600)  # two images
    parts = data.load(f"folder:{tmp_path / 'photos'}", tmp_path / "parts")
    assert torch.equal(whole.train.images, parts.train.images)


@pytest.mark.parametrize("value", ["0", "-3", "many", "1.5"])
def test_a_limit_must_be_a_number(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SORA_MAX_PIXELS", value)
    with pytest.raises(UserError, match=r"SORA_MAX_PIXELS is .* expected an integer"):
        decode(grey_png(2, 2))


@pytest.mark.parametrize("kind", ["fifo", "socket", "folder", "broken link", "device"])
def test_only_regular_files_are_opened(tmp_path: Path, kind: str) -> None:
    folder = folder_of(tmp_path, grey_png(8, 8))
    path = folder / "class0" / "x.png"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        socket.socket(socket.AF_UNIX).bind(str(path))
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "device" else "nowhere")
    with pytest.raises(UserError, match=r"x\.png is not a regular file"):
        data.load(f"folder:{folder}")


def test_fifos_and_devices_in_other_places(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.npz")
    for path in (tmp_path / "fifo.npz", Path("/dev/zero")):
        with pytest.raises(UserError, match=r"not a regular file|not an npz file"):
            data.load(f"npz:{path}")
        with pytest.raises(UserError, match="not a regular file"):
            decode(path)
        with pytest.raises(UserError):
            data.get("cifar10", given=path)


ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR(K\x01(K\x01t"
PICKLES = {
    "a huge memo": b"\x80\x02]r\xff\xff\xff\x7f.",
    "a huge text memo": b"(lp2147483647\n.",
    "a byte array of its own size": b"\x80\x05\x96" + (1 << 33).to_bytes(8, "little") + b".",
    "a list used twice": b"\x80\x02]q\x00(h\x00h\x00e.",
    "a tuple used twice as key": b"\x80\x02}(K\x01\x85q\x00h\x00\x86K\x01u.",
    "a deep tuple": b"\x80\x02}(" + b")" + b"\x85" * 100_000 + b"K\x01u.",
    "duplicates": b"\x80\x02]" + b"2" * 100 + b".",
    "a persistent object": b"Pabc\n.",
    "an extension": b"\x80\x02\x82\x01.",
    **{repr(garbage): garbage for garbage in (b"", b"hello", b"\x80\x02]q.", b"\x80\x05K\x01.")},
}
OBJECTS = b"\x80\x02}(U\x04data" + ARRAY + b"cnumpy\ndtype\n(U\x02O8K\x00K\x01tR\x89](Netbu."
GLOBALS = ("builtins\neval", "os\nsystem", "numpy\nload", "_codecs\nencode", "numpy\nfromfile")


@pytest.mark.parametrize(
    "pickled",
    [*PICKLES.values(), *(f"c{name}\n(S'1+1'\ntR.".encode() for name in GLOBALS), OBJECTS],
    ids=[*PICKLES, *GLOBALS, "an array of objects"],
)
def test_pickles_that_grow_or_are_none_of_cifars(tmp_path: Path, pickled: bytes) -> None:
    folder = tmp_path / "cifar"
    folder.mkdir()
    (folder / "batches.meta").write_bytes(formats.python2_pickle({b"label_names": [b"a", b"b"]}))
    (folder / "data_batch_1").write_bytes(pickled)
    with pytest.raises(UserError, match="data_batch_1 is not a CIFAR batch") as caught:
        data.get("cifar10", given=folder)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "labels", [[[0, 1], [2, 3]], [0, 1 << 40, 2], [0, 1.5, 2], [0, True, 2], "012", {"0": 1}, None, [[[0]]]]
)
def test_labels_are_a_flat_list(tmp_path: Path, labels: object) -> None:
    folder = tmp_path / "cifar"
    folder.mkdir()
    known = formats.python2_pickle({b"data": formats.noise(3, 3072)})
    # The dictionary's last instruction adds both entries.
    pickled = known[:-2] + b"U\x06labels" + pickle.dumps(labels, protocol=2)[2:-1] + b"u."
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (folder / name).write_bytes(pickled)
    meta = {b"label_names": [b"a", b"b"]}
    (folder / "batches.meta").write_bytes(formats.python2_pickle(meta))
    with pytest.raises(UserError, match="labels are not a list of integers"):
        data.get("cifar10", given=folder)


@pytest.mark.parametrize("codec", ["brotli", "zstd"])
def test_parquet_codecs_without_a_bound(tmp_path: Path, codec: str) -> None:
    formats.parquet(tmp_path / "parquet" / "train-0.parquet", [os.urandom(100)] * 3, compression=codec)
    with pytest.raises(UserError, match="allowed: UNCOMPRESSED, SNAPPY"):
        data.get("imagenet100", given=tmp_path / "parquet")


def npy_header(shape: tuple[int, ...], descr: str = "|u1") -> bytes:
    text = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


@pytest.mark.parametrize("shape", [(1 << 40, 8, 8), (1 << 31, 8, 8), (2, 1 << 30, 1 << 30)])
def test_array_headers_that_declare_too_much(tmp_path: Path, shape: tuple[int, ...]) -> None:
    arrays = {}
    for split in ("train", "test"):
        arrays[f"{split}_images.npy"] = npy_header(shape) + bytes(64)
        arrays[f"{split}_labels.npy"] = npy_header(shape[:1]) + bytes(64)
    (tmp_path / "x.npz").write_bytes(formats.zipped(arrays))
    with pytest.raises(UserError, match="declares a size that is not its own"):
        data.load(f"npz:{tmp_path / 'x.npz'}")
    store = tmp_path / "data" / "cifar10"
    store.mkdir(parents=True)
    for name, content in arrays.items():
        (store / name).write_bytes(content)
    splits = {split: {"images": "", "labels": ""} for split in ("train", "test")}
    meta = {"format": 1, "classes": ["a", "b"], "test_size": None, "splits": splits}
    for text, message in ((json.dumps(meta), "is damaged"), ("[" * 100_000, "nested too deeply")):
        (store / "meta.json").write_text(text)
        with pytest.raises(RunError, match=message):
            data.load("cifar10", tmp_path / "data")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_members_whose_unpacked_size_has_no_bound(tmp_path: Path, method: int) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w", method) as archive:
        archive.writestr("x_train.npy", npy_header((4, 8, 8)) + bytes(256))
    with pytest.raises(UserError, match=r"'x_train\.npy' is neither stored nor deflated"):
        data.load(f"npz:{tmp_path / 'x.npz'}")


def test_labels_and_class_names_of_an_npz(tmp_path: Path) -> None:
    images = formats.noise(4, 8, 8)
    arrays = {"x_train": images, "x_test": images, "y_test": np.zeros(4, int)}
    for labels in (np.array([0, 1, 2, 10**12]), np.array([0, 1, -1, 2])):
        (tmp_path / "x.npz").write_bytes(formats.npz(y_train=labels, **arrays))
        with pytest.raises(UserError, match="labels"):
            data.load(f"npz:{tmp_path / 'x.npz'}")
    names = np.array(["a" * 1_000_000] * 2)
    (tmp_path / "x.npz").write_bytes(formats.npz(y_train=np.array([0, 1, 0, 1]), classes=names, **arrays))
    with pytest.raises(UserError, match=r"its array classes exceeds the limit of 1,048,576 bytes$"):
        data.load(f"npz:{tmp_path / 'x.npz'}")


def test_a_file_of_the_user_is_read_up_to_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SORA_MAX_UNPACKED", "100000")
    (tmp_path / "cifar").mkdir()
    with (tmp_path / "cifar" / "test_batch.bin").open("wb") as file:
        file.truncate(1 << 40)  # takes no space on disk
    (tmp_path / "cifar" / "batches.meta.txt").write_text("a\nb\n")
    for i in range(1, 6):
        os.link(tmp_path / "cifar" / "test_batch.bin", tmp_path / "cifar" / f"data_batch_{i}.bin")
    with pytest.raises(UserError, match="exceeds the limit of 100,000 bytes; set SORA_MAX_UNPACKED"):
        data.get("cifar10", given=tmp_path / "cifar")


def test_a_parquet_header_at_which_pyarrow_ends_the_process(tmp_path: Path, monkeypatch) -> None:
    formats.parquet(tmp_path / "parquet" / "train-0.parquet", [os.urandom(100)] * 3)
    monkeypatch.setattr("sora.data.sources.imagenet100._READ_HEADER", "import os; os.abort()")
    with pytest.raises(UserError, match="is not a parquet file: its header is damaged"):
        data.get("imagenet100", given=tmp_path / "parquet")
