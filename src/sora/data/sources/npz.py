"""`npz:PATH`: your own NumPy archive, under MedMNIST's keys or Keras' (`x_train y_train x_test y_test`)."""

from pathlib import Path

from sora._files import absolute
from sora.data import _store
from sora.data._base import register
from sora.data.builder import build
from sora.data.dataset import Dataset, check_same_size
from sora.data.npz import ImageArchive


@register("npz", argument="PATH", summary="your own images as arrays in a NumPy archive")
def load(root: Path, argument: str) -> Dataset:
    """Load an npz file; if it exceeds the memory budget, it is packed into a store first."""
    path, name = absolute(argument), f"npz:{argument}"
    folder, origin = _store.cache_name(path), _store.listing([path] if path.exists() else [])
    if _store.origin_of(root / folder) == origin:
        return _store.open_store(root / folder, name)
    archive = ImageArchive(path)
    if archive.image_bytes > _store.MEMORY_BUDGET:
        store = build(root, folder, origin, lambda builder: archive.pack(builder, archive.classes))
        return _store.open_store(store, name)
    sets = {split: archive.read(split) for split in archive.labels}
    check_same_size(sets)
    return Dataset(name, sets["train"], sets["test"], sets.get("val"), tuple(archive.classes))
