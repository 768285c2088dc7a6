"""MedMNIST's data sets: npz files at 28 pixels with their own validation splits."""

from __future__ import annotations

from pathlib import Path

from sora.data._base import Remote, register_packed
from sora.data._npz import Archive
from sora.data.builder import Builder
from sora.errors import UserError


def register_medmnist(
    name: str, *, summary: str, classes: tuple[str, ...], md5: str, train: int, val: int, test: int
) -> None:
    """Register one of them, published as `name`.npz."""

    def convert(path: Path, builder: Builder) -> None:
        file = path / f"{name}.npz" if path.is_dir() else path
        archive = Archive(file)
        if len(archive.classes) != len(classes):
            raise UserError(f"{file} has {len(archive.classes)} classes; {name} has {len(classes)}")
        archive.pack(builder, classes)

    url = f"https://zenodo.org/records/10519652/files/{name}.npz?download=1"
    register_packed(
        name,
        summary=summary,
        counts={"train": train, "val": val, "test": test},
        licence="CC BY 4.0",
        files=(Remote(url, f"md5:{md5}"),),
    )(convert)
