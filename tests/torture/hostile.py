"""What a hostile file needs: a place to lie in, a canary that must not appear, and pieces of bad formats."""

import io
import os
import pickle
import random
import shutil
import struct
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

from tests.data import formats

TINY = "--epochs 1 --batch-size 8 --attacks clean --width 4 --set model.stages=1 --threads 1"
SCRIPT = "<script>alert(1)"
Attack = Callable[["Place"], "list[str] | None"]
"""Writes hostile files and returns the command line that reads them."""


class Place:
    """A folder to work in with copies of a finished run, and around it things that must not change."""

    def __init__(self, folder: Path, finished: Path, rng: random.Random) -> None:
        self.folder, self.finished, self.rng, self.note = folder, finished, rng, ""
        self.refuse = False  # whether the command must not succeed
        self.work, self.canary, self.victim = folder / "work", folder / "canary", folder / "victim"
        self.work.mkdir()
        self.victim.mkdir()
        (self.victim / "file").write_text("untouched\n" * 500)

    def run(self) -> Path:
        """A copy of the finished run."""
        target = self.work / "run"
        shutil.copytree(self.finished, target)
        return target

    def unfinished(self) -> Path:
        """The same as if it had been killed before the end."""
        target = self.run()
        for name in ("summary.json", "model.json", "model.safetensors"):
            (target / name).unlink()
        return target

    def choose(self, *options: str) -> str:
        """One of them, noted for the report."""
        chosen = self.rng.choice(options)
        self.note = f"{self.note} {chosen[:60]!r}".strip()
        return chosen

    def number(self, low: int, high: int) -> int:
        """A random number, noted for the report."""
        chosen = self.rng.randint(low, high)
        self.note = f"{self.note} {chosen}".strip()
        return chosen

    def evil_pickle(self, protocol: int | None = None) -> bytes:
        """Unpickled without care, it would create the canary."""
        return pickle.dumps({"data": formats.Evil(self.canary), "labels": [1]}, protocol)


def png(width: int, height: int, *, colour: int = 0, body: bytes = b"", lies: bool = True) -> bytes:
    """A PNG header of any size; without `lies` all pixels are there, one bit each and nearly free."""
    depth = 1 if colour in (0, 3) else 8
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    if not lies:
        row = bytes(1 + (width * depth + 7) // 8)
        packer = zlib.compressobj(9)
        body = b"".join(packer.compress(row * 64) for _ in range(-(-height // 64))) + packer.flush()
    parts = [(b"IHDR", head), (b"IDAT", body or zlib.compress(b"\0" * 10)), (b"IEND", b"")]
    if colour == 3:
        parts.insert(1, (b"PLTE", b"\1\2\3\4\5\6"))
    return b"\x89PNG\r\n\x1a\n" + b"".join(map(_chunk, parts))


def _chunk(part: tuple[bytes, bytes]) -> bytes:
    kind, data = part
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def npy(header: str, body: bytes = b"", length: int | None = None) -> bytes:
    """An array file with any header."""
    text = header.encode().ljust(118) + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text) if length is None else length) + text + body


def tensors(header: bytes, body: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file with any header."""
    return struct.pack("<Q", len(header) if length is None else length) + header + body


def images_folder(place: Place, hostile: bytes | None = None, name: str = "x.png", count: int = 1) -> Path:
    """Two classes of ordinary pictures, and hostile ones among them."""
    root = write_pictures(place.work / "pictures", 6)
    if hostile is not None:
        for i in range(count):
            (root / "class0" / f"{i}-{name}").write_bytes(hostile)
    return root


def write_pictures(root: Path, count: int) -> Path:
    """Two folders of so many ordinary pictures each."""
    for label in range(2):
        (root / f"class{label}").mkdir(parents=True)
        for i, image in enumerate(formats.noise(count, 8, 8, 3, seed=label)):
            (root / f"class{label}" / f"{i:04d}.png").write_bytes(formats.png(image))
    return root


def packing(originals: Path, rng: random.Random) -> tuple[list[str], Callable[[Path], None]]:
    """A command that packs pictures or published files, `OUT` for its folder, and what prepares that."""
    if not originals.exists():
        draft = originals.with_suffix(".part")
        shutil.rmtree(draft, ignore_errors=True)
        write_pictures(draft / "pictures", 200)  # more than are decoded at once
        unpack(formats.Cifar10().python(), draft / "cifar10")
        unpack(formats.Cifar100().binary(), draft / "cifar100")
        draft.rename(originals)
    sources = {name: [name, "--from", str(originals / name)] for name in ("cifar10", "cifar100")}
    sources["pictures"] = [f"folder:{originals / 'pictures'}"]
    sources["small"] = [f"folder:{originals / 'pictures'}?size=6&mode=grey"]
    chosen = sources[rng.choice(["pictures", "small", "pictures", "cifar10", "cifar100"])]
    return ["data", "get", *chosen, "--data-dir", "OUT"], lambda folder: os.makedirs(folder, exist_ok=True)


def unpack(archive: bytes, folder: Path) -> Path:
    """Write the members of a tar file into a folder, without their own folders."""
    folder.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for member in files:
            content = files.extractfile(member)
            assert content is not None
            (folder / Path(member.name).name).write_bytes(content.read())
    return folder


def no_file(place: Place, path: Path, *kinds: str) -> None:
    """Put something else where a file is expected: a FIFO, a folder, a link to itself or to something."""
    kind = place.choose(*kinds)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(path.name if kind == "loop" else kind)


def flip_bits(content: bytes, count: int, rng: random.Random) -> bytes:
    """The content with so many bits flipped."""
    damaged = bytearray(content)
    for _ in range(count):
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def array_file(array: object) -> bytes:
    """An array as numpy writes it, objects pickled."""
    import numpy as np

    file = io.BytesIO()
    np.save(file, np.asarray(array), allow_pickle=True)
    return file.getvalue()


def reading(place: Place, dataset: str) -> list[str]:
    """A command that reads a data set; options of the reader vary."""
    verb = place.choose("get", "check", "get", "show", "train")
    home = ["--data-dir", str(place.work / "home")]
    if verb == "show":
        return ["data", "show", dataset, *home, "--out", "x.png"]
    if verb == "train":
        flags = f"{TINY} --limit-train 16 --quiet --out run"
        return ["train", "--dataset", dataset, *home, *flags.split()]
    return ["data", verb, dataset, *home]
