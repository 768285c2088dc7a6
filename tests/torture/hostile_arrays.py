"""Hostile arrays, pickles, archives, parquet files and packed data sets."""

from __future__ import annotations

import io
import json
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np

from tests.data import formats
from tests.torture.hostile import Attack, Evil, Place, npy, reading

HEADERS = (
    "{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000, 8, 8, 3), }",
    "{'descr': '|u1', 'fortran_order': False, 'shape': (99999999999999999999999, 8), }",
    "{'descr': '|u1', 'fortran_order': False, 'shape': (-4, 8, 8, 3), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (4,), }",
    "{'descr': '|u1', 'fortran_order': True, 'shape': (4, 8, 8, 3), }",
    "{'descr': [('a', '|u1', (2147483647, 2147483647))], 'fortran_order': False, 'shape': (4,), }",
    "{'descr': __import__('os').system('touch CANARY'), 'fortran_order': False, 'shape': (4,), }",
    "{'descr': '|u1', 'shape': (4, 8, 8, 3), }",
    "[" * 110,
    "{'descr': '<U1000000000', 'fortran_order': False, 'shape': (4,), }",
    "{'descr': '|u1', 'fortran_order': False, 'shape': (4, 0, 0, 3), }",
)


def npz_with_any_header(place: Place) -> list[str]:
    header = str(place.choose(*HEADERS)).replace("CANARY", str(place.canary))
    length = place.rng.choice([None, None, None, 65_535, 0])
    return _npz(
        place, {str(place.choose("x_train", "y_train", "x_test")): npy(header, bytes(768), length=length)}
    )


def npz_with_objects(place: Place) -> list[str]:
    file = io.BytesIO()
    np.save(file, np.array([Evil(place.canary)], dtype=object), allow_pickle=True)
    return _npz(place, {str(place.choose("x_train", "y_train", "classes")): file.getvalue()})


def npz_bomb(place: Place) -> list[str]:
    """Zeros that pack a thousandfold."""
    count = place.number(1, 4) * 100_000_000
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({count // 100}, 10, 10, 1), }}"
    return _npz(
        place, {str(place.choose("x_train", "y_train", "other", "classes")): npy(header, bytes(count))}
    )


def npz_with_strange_labels(place: Place) -> list[str]:
    labels = {
        "huge": np.array([0, 1, 10**12, 2]), "negative": np.array([0, -1, 1, 1]), "real": np.full(4, 0.5),
        "nan": np.full(4, np.nan), "text": np.array(["a", "b", "c", "d"]), "deep": np.zeros((4, 1, 1, 1),
        int),
        "few": np.zeros(3, int), "none": np.zeros(0, int), "unsigned": np.full(4, 2**63, np.uint64),
    }  # fmt: skip
    file = io.BytesIO()
    np.save(file, labels[str(place.choose(*labels))])
    return _npz(place, {"y_train": file.getvalue()})


def npz_with_outside_names(place: Place) -> list[str]:
    name = str(place.choose("../../canary", f"{place.canary}", "..\\canary", "x_train.npy/../../../canary"))
    return _npz(place, {name: b"evil"}, plain_names=True)


def damaged_npz(place: Place) -> list[str]:
    whole = bytearray(formats.npz(**_arrays()))
    for _ in range(place.number(1, 30)):
        whole[place.rng.randrange(len(whole))] ^= 1 << place.rng.randrange(8)
    path = place.work / "x.npz"
    path.write_bytes(whole[: place.rng.choice([len(whole), place.rng.randrange(len(whole))])])
    return reading(place, f"npz:{path}")


def no_npz(place: Place) -> list[str]:
    path = place.work / "x.npz"
    path.symlink_to(str(place.choose("/dev/zero", "x.npz", "/etc/passwd", "/dev/null", "/")))
    return reading(place, f"npz:{path}")


PICKLES = {
    "long binput": b"\x80\x02}r\xff\xff\xff\x7f.",
    "long binput twice": b"\x80\x02}r\x00\x00\x00\x10r\x00\x00\x00\x08.",
    "nested lists": b"\x80\x02" + b"]" * 300_000 + b"." ,
    "nested tuples": b"\x80\x02N" + b"\x85" * 300_000 + b".",
    "long4": b"\x80\x02\x8b\xff\xff\xff\x7f",
    "binunicode8": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b"x",
    "binbytes8": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"x",
    "bytearray8": b"\x80\x05\x96" + struct.pack("<Q", 1 << 34) + b"x",
    "frame": b"\x80\x04\x95" + struct.pack("<Q", 1 << 60) + b"N.",
    "persistent": b"\x80\x02U\x01aQ.",
    "extension": b"\x80\x02\x82\x01.",
    "global chain": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
    "reduce": b"cposix\nsystem\n(S'true'\ntR.",
    "build": b"\x80\x02cnumpy\nndarray\n)\x81}U\x07__class__Nsb.",
}  # fmt: skip


def cifar_pickle(place: Place) -> list[str]:
    kind = str(place.choose(*PICKLES))
    return _cifar(place, PICKLES[kind])


def cifar_pickle_of_code(place: Place) -> list[str]:
    return _cifar(place, place.evil_pickle(place.number(0, 5)))


def cifar_laughs(place: Place) -> list[str]:
    """A list that holds itself twice, thirty times over."""
    depth = place.number(20, 40)
    body = b"]q\x00K\x01a" + b"".join(
        b"](h" + bytes([i]) + b"h" + bytes([i]) + b"eq" + bytes([i + 1]) for i in range(depth)
    )
    key = str(place.choose("labels", "label_names", "data")).encode()
    return _cifar(place, b"\x80\x02}U" + bytes([len(key)]) + key + body + b"s.")


def cifar_lying_array(place: Place) -> list[str]:
    batch = formats.python2_pickle({b"labels": [0] * 3, b"data": formats.noise(3, 3072)})
    lie = struct.pack("<i", place.number(4, 2**31 - 1))
    return _cifar(place, batch.replace(b"J" + struct.pack("<i", 3) + b"J", b"J" + lie + b"J"))


def cifar_binary(place: Place) -> list[str]:
    folder = _unpacked(place, formats.Cifar10().binary())
    (folder / str(place.choose("test_batch.bin", "data_batch_1.bin"))).write_bytes(
        place.rng.randbytes(3073 * place.number(0, 3) + place.number(0, 1))
    )
    return _get(place, "cifar10", folder)


def archive(place: Place) -> list[str]:
    """A tar or zip file with members that point outside, links, devices or bombs."""
    kind = str(
        place.choose("../canary", "/canary", "link", "hard link", "device", "fifo", "bomb", "many", "zip")
    )
    path = place.work / "cifar-10-python.tar.gz"
    if kind == "zip":
        path.write_bytes(formats.zipped({"../canary": b"x", str(place.canary): b"x"}))
    else:
        with tarfile.open(path, "w:gz") as file:
            file.addfile(_member(kind, place), io.BytesIO(bytes(10**8 if kind == "bomb" else 0)))
            for i in range(20_000 if kind == "many" else 0):
                file.addfile(tarfile.TarInfo(f"{i}"))
    name = str(place.choose("cifar10", "cifar100", "tinyimagenet", "pathmnist", "imagenet100"))
    return _get(place, name, path)


def parquet(place: Place) -> list[str] | None:
    try:
        import pyarrow as pa
        from pyarrow import parquet as pq
    except ImportError:
        return None
    folder = place.work / "parquet"
    folder.mkdir()
    kind = str(place.choose("bomb", "cut", "labels", "columns", "null", "flipped", "zeros"))
    content = {"bomb": bytes(place.number(1, 5) * 10**7), "null": None}.get(
        kind, formats.png(formats.noise(1, 9, 9, 3)[0])
    )
    count = 300 if kind == "bomb" else 10_000_000 if kind == "zeros" else 4
    images = pa.array([{"bytes": content}] * (1 if kind in ("zeros", "bomb") else count))
    if kind == "zeros":
        images = pa.nulls(count, images.type)
    elif kind == "bomb":  # one picture and 300 references to it, so that the bench itself needs little memory
        references = pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array([content]))
        images = pa.StructArray.from_arrays([references], ["bytes"])
    labels = pa.array(["x"] * count) if kind == "labels" else pa.array(np.zeros(count, np.int64))
    table = pa.table({"picture" if kind == "columns" else "image": images, "label": labels})
    for split in ("train", "test"):
        path = folder / f"{split}-0.parquet"
        pq.write_table(table, path, compression="zstd", store_schema=False)
        whole = bytearray(path.read_bytes())
        if kind == "cut":
            path.write_bytes(whole[: place.rng.randrange(len(whole))])
        elif kind == "flipped":
            for _ in range(20):
                whole[place.rng.randrange(len(whole))] ^= 1 << place.rng.randrange(8)
            path.write_bytes(whole)
    return _get(place, "imagenet100", folder)


def packed_store(place: Place) -> list[str]:
    """A data folder that holds a hostile `cifar10`, as if it had been packed."""
    store = place.work / "home" / "cifar10"
    store.mkdir(parents=True)
    (store / "origin").write_text("x")
    metas = (
        "[" * 200_000, "{}", "[]", "null", "1", '{"format": 1}', '{"format": 1, "classes": 3}', "NaN", "\x00",
        json.dumps({"format": 1, "classes": ["a"] * 10, "splits": {"../../victim": {}}, "test_size": 1}),
        json.dumps({"format": 1, "classes": ["a", "b"], "splits": {key: {"images": ""} for key in ("train",
        "test")},
                    "test_size": 10**9}),
    )  # fmt: skip
    (store / "meta.json").write_text(str(place.choose(*metas)))
    for split in ("train", "test"):
        header = str(place.rng.choice(HEADERS)).replace("CANARY", str(place.canary))
        (store / f"{split}_images.npy").write_bytes(npy(header, bytes(768)))
        (store / f"{split}_labels.npy").write_bytes(npy(HEADERS[0].replace("|u1", "<i8"), bytes(64)))
    home = ["--data-dir", str(place.work / "home")]
    return (
        ["data", str(place.choose("list", "list")), *home]
        if place.rng.random() < 0.3
        else reading(place, "cifar10")
    )


def _member(kind: str, place: Place) -> tarfile.TarInfo:
    member = tarfile.TarInfo("data_batch_1")
    types = {
        "link": tarfile.SYMTYPE,
        "hard link": tarfile.LNKTYPE,
        "device": tarfile.CHRTYPE,
        "fifo": tarfile.FIFOTYPE,
    }
    member.type, member.linkname = types.get(kind, tarfile.REGTYPE), str(place.victim / "file")
    member.name = kind if "canary" in kind else member.name
    member.size = 10**8 if kind == "bomb" else 0
    return member


def _arrays() -> dict[str, np.ndarray]:
    images, labels = formats.noise(4, 8, 8, 3), np.arange(4) % 2
    return {"x_train": images, "y_train": labels, "x_test": images, "y_test": labels}


def _npz(place: Place, members: dict[str, bytes], plain_names: bool = False) -> list[str]:
    """An ordinary archive with some members replaced."""
    path = place.work / "x.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, array in _arrays().items():
            if name not in members:
                part = io.BytesIO()
                np.save(part, array)
                file.writestr(f"{name}.npy", part.getvalue())
        for name, content in members.items():
            file.writestr(name if plain_names else f"{name}.npy", content)
    return reading(place, f"npz:{path}")


def _unpacked(place: Place, content: bytes) -> Path:
    folder = place.work / "originals"
    folder.mkdir()
    with tarfile.open(fileobj=io.BytesIO(content)) as files:
        for member in files:
            part = files.extractfile(member)
            assert part is not None
            (folder / Path(member.name).name).write_bytes(part.read())
    return folder


def _cifar(place: Place, batch: bytes) -> list[str]:
    """CIFAR-10's python files, one of them replaced."""
    folder = _unpacked(place, formats.Cifar10().python())
    (folder / str(place.choose("data_batch_1", "test_batch", "batches.meta"))).write_bytes(batch)
    return _get(place, "cifar10", folder)


def _get(place: Place, name: str, source: Path) -> list[str]:
    return ["data", "get", name, "--from", str(source), "--data-dir", str(place.work / "home")]


ATTACKS: list[Attack] = [
    npz_with_any_header, npz_with_objects, npz_bomb, npz_with_strange_labels, npz_with_outside_names,
    damaged_npz,
    no_npz, cifar_pickle, cifar_pickle_of_code, cifar_laughs, cifar_lying_array, cifar_binary, archive,
    parquet,
    packed_store, npz_with_any_header, cifar_pickle, packed_store,
]  # fmt: skip
