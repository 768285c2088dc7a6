"""Hostile arrays, pickles, archives, parquet files, packed data sets and attacked images."""

import io
import json
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np

from tests.data import formats
from tests.torture.hostile import Attack, Place, array_file, flip_bits, no_file, npy, reading, unpack
from tests.torture.hostile_runs import JSONS

IMAGES, LABELS = formats.noise(4, 8, 8, 3), np.arange(4) % 2
BOMB = 800 << 20  # bytes
ARRAYS = {"x_train": IMAGES, "y_train": LABELS, "x_test": IMAGES, "y_test": LABELS}

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
    length = place.rng.choice([None, None, None, 65_535, 0])
    name = place.choose("x_train", "y_train", "x_test")
    return _npz(place, {name: npy(_header(place), bytes(768), length)})


def npz_with_objects(place: Place) -> list[str]:
    name = place.choose("x_train", "y_train", "classes")
    return _npz(place, {name: array_file(np.array([formats.Evil(place.canary)], dtype=object))})


def npz_bomb(place: Place) -> list[str]:
    """Zeros that pack a thousandfold."""
    count = place.number(1, 4) * 100_000_000
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({count // 100}, 10, 10, 1), }}"
    name = place.choose("x_train", "y_train", "other", "classes")
    return _npz(place, {name: npy(header, bytes(count))})


def npz_of_any_compression(place: Place) -> list[str]:
    """Members packed as NumPy never packs them; a bzip2 member unpacks at once to any size."""
    kind, path = place.choose("bzip2", "lzma", "bomb"), place.work / "x.npz"
    place.refuse = True
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA if kind == "lzma" else zipfile.ZIP_BZIP2) as file:
        for name, array in ARRAYS.items():
            more = BOMB if kind == "bomb" and name == "x_train" else 0
            with file.open(f"{name}.npy", "w") as member:
                for part in (array_file(array), *[bytes(1 << 24)] * (more >> 24)):
                    member.write(part)
    true, false = (struct.pack("<I", len(array_file(IMAGES)) + more) for more in (BOMB, 0))
    path.write_bytes(path.read_bytes().replace(true, false))
    if place.choose("data", "attacked") == "data":
        return reading(place, f"npz:{path}")
    return ["evaluate", str(place.run()), "--adversarial", str(path), "--threads", "1", "--quiet"]


def npz_with_strange_labels(place: Place) -> list[str]:
    return _npz(place, {"y_train": _strange(place)})


def npz_with_outside_names(place: Place) -> list[str]:
    name = place.choose("../../canary", f"{place.canary}", "..\\canary", "x_train.npy/../../../canary")
    return _npz(place, {name: b"evil"})


def damaged_npz(place: Place) -> list[str]:
    whole = flip_bits(formats.npz(**ARRAYS), place.number(1, 30), place.rng)
    path = place.work / "x.npz"
    path.write_bytes(whole[: place.rng.choice([len(whole), place.rng.randrange(len(whole))])])
    return reading(place, f"npz:{path}")


def no_npz(place: Place) -> list[str]:
    path = place.work / "x.npz"
    no_file(place, path, "/dev/zero", "loop", "/etc/passwd", "/dev/null", "/")
    return reading(place, f"npz:{path}")


PICKLES = {
    "long binput": b"\x80\x02}r\xff\xff\xff\x7f.",
    "long binput twice": b"\x80\x02}r\x00\x00\x00\x10r\x00\x00\x00\x08.",
    "nested lists": b"\x80\x02" + b"]" * 300_000 + b".",
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
}


def cifar_pickle(place: Place) -> list[str]:
    return _cifar(place, PICKLES[place.choose(*PICKLES)])


def cifar_pickle_of_code(place: Place) -> list[str]:
    return _cifar(place, place.evil_pickle(place.number(0, 5)))


def cifar_laughs(place: Place) -> list[str]:
    """A list that contains itself twice, thirty times over."""
    twice = (b"](h%ch%ceq%c" % (i, i, i + 1) for i in range(place.number(20, 40)))
    key = place.choose("labels", "label_names", "data").encode()
    return _cifar(place, b"\x80\x02}U%c%b]q\x00K\x01a%bs." % (len(key), key, b"".join(twice)))


def cifar_lying_array(place: Place) -> list[str]:
    batch = formats.python2_pickle({b"labels": [0] * 3, b"data": formats.noise(3, 3072)})
    lie = struct.pack("<i", place.number(4, 2**31 - 1))
    return _cifar(place, batch.replace(b"J" + struct.pack("<i", 3) + b"J", b"J" + lie + b"J"))


def cifar_binary(place: Place) -> list[str]:
    folder = unpack(formats.Cifar10().binary(), place.work / "originals")
    content = place.rng.randbytes(3073 * place.number(0, 3) + place.number(0, 1))
    (folder / place.choose("test_batch.bin", "data_batch_1.bin")).write_bytes(content)
    return _get(place, "cifar10", folder)


def archive(place: Place) -> list[str]:
    """A tar or zip file with members that point outside, links, devices or bombs."""
    kinds = ("../canary", "/canary", "link", "hard link", "device", "fifo", "bomb", "many", "zip")
    kind, path = place.choose(*kinds), place.work / "cifar-10-python.tar.gz"
    if kind == "zip":
        path.write_bytes(formats.zipped({"../canary": b"x", str(place.canary): b"x"}))
    else:
        member = tarfile.TarInfo(kind if "canary" in kind else "data_batch_1")
        types = {"link": tarfile.SYMTYPE, "hard link": tarfile.LNKTYPE}
        types |= {"device": tarfile.CHRTYPE, "fifo": tarfile.FIFOTYPE}
        member.type, member.linkname = types.get(kind, tarfile.REGTYPE), str(place.victim / "file")
        member.size = 10**8 if kind == "bomb" else 0
        with tarfile.open(path, "w:gz") as file:
            file.addfile(member, io.BytesIO(bytes(member.size)))
            for i in range(20_000 if kind == "many" else 0):
                file.addfile(tarfile.TarInfo(f"{i}"))
    name = place.choose("cifar10", "cifar100", "tinyimagenet", "pathmnist", "imagenet100")
    return _get(place, name, path)


def parquet(place: Place) -> list[str] | None:
    try:
        import pyarrow as pa
        from pyarrow import parquet as pq
    except ImportError:
        return None
    folder = place.work / "parquet"
    folder.mkdir()
    kind = place.choose("bomb", "cut", "labels", "columns", "null", "flipped", "zeros")
    picture = formats.png(formats.noise(1, 9, 9, 3)[0])
    content = {"bomb": bytes(place.number(1, 5) * 10**7), "null": None}.get(kind, picture)
    count = {"bomb": 300, "zeros": 10_000_000}.get(kind, 4)
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
        whole = path.read_bytes()
        if kind == "cut":
            path.write_bytes(whole[: place.rng.randrange(len(whole))])
        elif kind == "flipped":
            path.write_bytes(flip_bits(whole, 20, place.rng))
    return _get(place, "imagenet100", folder)


def packed_store(place: Place) -> list[str]:
    """A data folder with a hostile `cifar10`, as if it had been packed."""
    store = place.work / "home" / "cifar10"
    store.mkdir(parents=True)
    (store / "origin").write_text("x")
    two = {"format": 1, "classes": ["a", "b"], "test_size": 10**9}
    metas = ["{}", "[]", "null", "1", "NaN", "\x00", "[" * 200_000]
    metas += ['{"format": 1}', '{"format": 1, "classes": 3}']
    metas += [json.dumps(two | {"classes": ["a"] * 10, "splits": {"../../victim": {}}})]
    metas += [json.dumps(two | {"splits": {key: {"images": ""} for key in ("train", "test")}})]
    (store / "meta.json").write_text(place.choose(*metas))
    for split in ("train", "test"):
        header = place.rng.choice(HEADERS).replace("CANARY", str(place.canary))
        (store / f"{split}_images.npy").write_bytes(npy(header, bytes(768)))
        (store / f"{split}_labels.npy").write_bytes(npy(HEADERS[0].replace("|u1", "<i8"), bytes(64)))
    if place.rng.random() < 0.3:
        return ["data", "list", "--data-dir", str(place.work / "home")]
    return reading(place, "cifar10")


def attacked_images(place: Place) -> list[str]:
    """One array of the attacked images that `sora evaluate --adversarial` reads is hostile.

    Its header, its size, its numbers, or the JSON in `about`.
    """
    facts = {"threat": {"norm": "linf", "given": "0.1", "box": [0, 1]}, "attacks": {"clean": {}}}
    arrays = {"labels": np.zeros(4, int), "positions": np.arange(4), "about": np.array(json.dumps(facts))}
    arrays["adversarial_clean"] = np.zeros((4, 1, 16, 16), "f4")
    members = {name: array_file(array) for name, array in arrays.items()}
    name = place.choose(*arrays)
    kind = place.choose("header", "bomb", "numbers", "about", "missing")
    if kind == "header":
        members[name] = npy(_header(place), bytes(768))
    elif kind == "bomb":
        bomb = "{'descr': '|u1', 'fortran_order': False, 'shape': (300000000,), }"
        members[name] = npy(bomb, bytes(3 * 10**8))
    elif kind == "numbers":
        members[name] = _strange(place)
    elif kind == "about":
        members["about"] = array_file(place.choose(*JSONS).replace("\x00", "?"))
    else:
        del members[name]
    path = _zip(place, members)
    return ["evaluate", str(place.run()), "--adversarial", str(path), "--threads", "1", "--quiet"]


def _strange(place: Place) -> bytes:
    """Numbers that cannot be labels or positions of four images."""
    strange = [np.array([0, 1, 10**12, 2]), np.array([0, -1, 1, 1]), np.full(4, 0.5), np.full(4, np.nan)]
    strange += [np.zeros((4, 1, 1, 1), int), np.zeros(3, int), np.zeros(0), np.full(4, 2**63, np.uint64)]
    strange += [np.array(["a", "b", "c", "d"]), np.array("x")]
    chosen = place.rng.choice(strange)
    place.note = f"{place.note} {chosen.tolist()}".strip()
    return array_file(chosen)


def _header(place: Place) -> str:
    return place.choose(*HEADERS).replace("CANARY", str(place.canary))


def _npz(place: Place, members: dict[str, bytes]) -> list[str]:
    """An ordinary archive with some members replaced."""
    whole = {name: array_file(array) for name, array in ARRAYS.items() if name not in members}
    return reading(place, f"npz:{_zip(place, whole | members)}")


def _zip(place: Place, members: dict[str, bytes]) -> Path:
    path = place.work / "x.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name if "canary" in name else f"{name}.npy", content)
    return path


def _cifar(place: Place, batch: bytes) -> list[str]:
    """CIFAR-10's python files, one of them replaced."""
    folder = unpack(formats.Cifar10().python(), place.work / "originals")
    (folder / place.choose("data_batch_1", "test_batch", "batches.meta")).write_bytes(batch)
    return _get(place, "cifar10", folder)


def _get(place: Place, name: str, source: Path) -> list[str]:
    return ["data", "get", name, "--from", str(source), "--data-dir", str(place.work / "home")]


ATTACKS: list[Attack] = [
    *(npz_with_any_header, npz_with_objects, npz_bomb, npz_with_strange_labels, npz_with_outside_names),
    *(damaged_npz, no_npz, cifar_pickle, cifar_pickle_of_code, cifar_laughs, cifar_lying_array, cifar_binary),
    *(npz_of_any_compression, archive, parquet, packed_store, attacked_images),
    *(npz_with_any_header, cifar_pickle, packed_store, attacked_images),  # those with most variants, twice
]
