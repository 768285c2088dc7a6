"""`pathmnist` and `tissuemnist`, from MedMNIST: npz files at 28 pixels with their own validation splits."""

from pathlib import Path

from sora.data._base import Remote, register_packed
from sora.data.builder import Builder
from sora.data.npz import ImageArchive
from sora.errors import UserError


def _register(
    name: str, *, summary: str, classes: tuple[str, ...], md5: str, train: int, val: int, test: int
) -> None:
    """Register one of MedMNIST's data sets, published as `name`.npz."""

    def convert(path: Path, builder: Builder) -> None:
        file = path / f"{name}.npz" if path.is_dir() else path
        archive = ImageArchive(file)
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


_register(
    "pathmnist",
    summary="PathMNIST, colon pathology, 28x28 colour, 9 classes",
    classes=(
        "adipose",
        "background",
        "debris",
        "lymphocytes",
        "mucus",
        "smooth muscle",
        "normal colon mucosa",
        "cancer-associated stroma",
        "colorectal adenocarcinoma epithelium",
    ),
    md5="a8b06965200029087d5bd730944a56c1",
    train=89_996,
    val=10_004,
    test=7_180,
)

_register(
    "tissuemnist",
    summary="TissueMNIST, kidney cortex cells, 28x28 grey, 8 classes",
    classes=(
        "Collecting Duct, Connecting Tubule",
        "Distal Convoluted Tubule",
        "Glomerular endothelial cells",
        "Interstitial endothelial cells",
        "Leukocytes",
        "Podocytes",
        "Proximal Tubule Segments",
        "Thick Ascending Limb",
    ),
    md5="ebe78ee8b05294063de985d821c1c34b",
    train=165_466,
    val=23_640,
    test=47_280,
)
