"""`pathmnist` and `tissuemnist`, from MedMNIST: npz files at 28 pixels with their own validation splits."""

from pathlib import Path

from sora.data._base import official, register_packed
from sora.data.builder import Builder
from sora.data.npz import ImageArchive
from sora.errors import UserError


def _register(name: str) -> None:
    """Register one of MedMNIST's data sets, published as `name`.npz."""
    facts = official(name)
    classes = facts.pop("classes")

    @register_packed(name, **facts)
    def convert(path: Path, builder: Builder) -> None:
        file = path / f"{name}.npz" if path.is_dir() else path
        archive = ImageArchive(file)
        if len(archive.classes) != len(classes):
            raise UserError(f"{file} has {len(archive.classes)} classes; {name} has {len(classes)}")
        archive.pack(builder, classes)


_register("pathmnist")
_register("tissuemnist")
