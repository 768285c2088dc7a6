"""Helpers shared by the tests of data."""

import dataclasses
import io
import json
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from sora import data
from sora.data._base import DATA
from tests.data import formats


def damaged_bytes(path: Path) -> Iterator[int]:
    """Damage each byte of a file in turn; the others are as they were."""
    whole = path.read_bytes()
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 0x80
        path.write_bytes(damaged)
        yield at


def official(name: str, *files: tuple[str, bytes], **changes: object) -> None:
    """Make these addresses and contents the official ones."""
    remotes = tuple(data.Remote(url, formats.md5(content)) for url, content in files)
    change_source(name, files=remotes, **changes)


def change_source(name: str, **changes: object) -> None:
    """Replace fields of what is registered about a packed data set, or of how it is packed."""
    known = data.info(name)
    assert known.packed is not None
    fields = {field.name for field in dataclasses.fields(known.packed)}
    packed = dataclasses.replace(known.packed, **{k: v for k, v in changes.items() if k in fields})  # type: ignore[arg-type]
    others = {k: v for k, v in changes.items() if k not in fields}
    changed = dataclasses.replace(known, packed=packed, **others)  # type: ignore[arg-type]
    DATA.entries[name] = changed


def pixels(images: data.ImageSet) -> np.ndarray:
    return images.gather(torch.arange(len(images))).permute(0, 2, 3, 1).numpy()


def unpack(content: bytes, folder: Path) -> Path:
    folder.mkdir()
    if zipfile.is_zipfile(io.BytesIO(content)):
        zipfile.ZipFile(io.BytesIO(content)).extractall(folder)
    else:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            for member in archive:
                file = archive.extractfile(member)
                assert file is not None
                (folder / member.name).parent.mkdir(parents=True, exist_ok=True)
                (folder / member.name).write_bytes(file.read())
    return folder


DAMAGE = ("meta", "format", "cut", "header", "objects", "float", "missing")


def damage_store(store: Path, kind: str) -> None:
    """Damage a packed data set in one of the ways of `DAMAGE`, which its headers show."""
    images, labels, meta = (store / name for name in ("train_images.npy", "train_labels.npy", "meta.json"))
    if kind == "meta":
        meta.write_text("{")
    elif kind == "format":
        meta.write_text(json.dumps({**json.loads(meta.read_text()), "format": 99}))
    elif kind == "cut":
        images.write_bytes(images.read_bytes()[:-1])
    elif kind == "header":
        images.write_bytes(images.read_bytes().replace(b"}", b"(", 1))
    elif kind == "missing":
        images.unlink()
    elif kind == "objects":
        np.save(labels, np.array([{}] * 6, dtype=object))
    else:
        np.save(images, np.zeros((6, 4, 4, 3)))
