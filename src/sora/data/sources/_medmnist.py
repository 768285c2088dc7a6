"""PathMNIST and TissueMNIST, the two medical sets, at 28 pixels, with their own validation splits."""

from __future__ import annotations

from pathlib import Path

from sora.data import npz
from sora.data._source import Remote, Source
from sora.data.pack import Builder
from sora.errors import UserError

_PATH = (
    "adipose",
    "background",
    "debris",
    "lymphocytes",
    "mucus",
    "smooth muscle",
    "normal colon mucosa",
    "cancer-associated stroma",
    "colorectal adenocarcinoma epithelium",
)
_TISSUE = (
    "Collecting Duct, Connecting Tubule",
    "Distal Convoluted Tubule",
    "Glomerular endothelial cells",
    "Interstitial endothelial cells",
    "Leukocytes",
    "Podocytes",
    "Proximal Tubule Segments",
    "Thick Ascending Limb",
)


def _source(name: str, classes: tuple[str, ...], md5: str, train: int, val: int, test: int) -> Source:
    def convert(path: Path, builder: Builder) -> None:
        file = path / f"{name}.npz" if path.is_dir() else path
        archive = npz.Archive(file)
        if len(archive.classes) != len(classes):
            raise UserError(f"{file} has {len(archive.classes)} classes; {name} has {len(classes)}")
        archive.pack(builder, classes)

    return Source(
        name=name,
        convert=convert,
        counts={"train": train, "val": val, "test": test},
        files=(Remote(f"https://zenodo.org/records/10519652/files/{name}.npz?download=1", f"md5:{md5}"),),
        licence="CC BY 4.0",
    )


PATHMNIST = _source("pathmnist", _PATH, "a8b06965200029087d5bd730944a56c1", 89_996, 10_004, 7_180)
TISSUEMNIST = _source("tissuemnist", _TISSUE, "ebe78ee8b05294063de985d821c1c34b", 165_466, 23_640, 47_280)
