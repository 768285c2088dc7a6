"""Data sets to pack: a folder of pictures, and the original files of published ones."""

from __future__ import annotations

import io
import random
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

from tests.data import formats
from tests.torture.bench import Bench
from tests.torture.hostile import write_pictures

PICTURES = 200  # per class: more than are decoded at once


def command(bench: Bench, rng: random.Random) -> tuple[list[str], Callable[[Path], None]]:
    """A packing command with `OUT` for the folder of data sets, and what prepares it."""
    originals = bench.scratch / "originals"
    if not originals.exists():
        draft = originals.with_suffix(".part")
        shutil.rmtree(draft, ignore_errors=True)
        write_pictures(draft / "pictures", PICTURES)
        unpack(formats.Cifar10().python(), draft / "cifar10")
        unpack(formats.Cifar100().binary(), draft / "cifar100")
        draft.rename(originals)
    sources = {
        "cifar10": ["cifar10", "--from", str(originals / "cifar10")],
        "cifar100": ["cifar100", "--from", str(originals / "cifar100")],
        "pictures": [f"folder:{originals / 'pictures'}"],
        "small": [f"folder:{originals / 'pictures'}?size=6&mode=grey"],
    }
    chosen = sources[rng.choice(["pictures", "small", "pictures", "cifar10", "cifar100"])]

    def prepare(folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)

    return ["data", "get", *chosen, "--data-dir", "OUT"], prepare


def unpack(archive: bytes, folder: Path) -> Path:
    """Write the members of a tar file into a folder, without their own folders."""
    folder.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for member in files:
            content = files.extractfile(member)
            assert content is not None
            (folder / Path(member.name).name).write_bytes(content.read())
    return folder
