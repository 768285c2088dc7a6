"""`npz:PATH`: NumPy's own archive, under MedMNIST's keys or Keras' (`x_train y_train x_test y_test`)."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from sora.data import disk, pack
from sora.data._store import Dataset, ImageSet
from sora.data.archives import open_archive
from sora.data.pack import Arrays, Builder
from sora.errors import UserError

_KEYS = ("{}_images", "{}_labels"), ("x_{}", "y_{}")


def load(text: str, root: Path) -> Dataset:
    """The data set in an npz file; what is larger than the memory budget goes through a store."""
    path = Path(text).expanduser().resolve()
    name, origin = disk.cache_name(path), disk.listing([path] if path.exists() else [])
    if disk.origin_of(root / name) == origin:
        return disk.open_store(root / name, f"npz:{text}")
    splits, classes = read(path)
    if sum(arrays.images.nbytes for arrays in splits.values()) > disk.MEMORY_BUDGET:
        folder = pack.build(root, name, origin, lambda builder: write(builder, splits, classes))
        return disk.open_store(folder, f"npz:{text}")
    sets = {split: ImageSet(*map(torch.from_numpy, arrays)) for split, arrays in splits.items()}
    return Dataset(f"npz:{text}", sets["train"], sets["test"], sets.get("val"), tuple(classes))


def write(builder: Builder, splits: Mapping[str, Arrays], classes: list[str]) -> None:
    """Fill a store from arrays in memory."""
    for split, arrays in splits.items():
        builder.add(split, arrays)
    builder.finish(classes)


def read(path: Path) -> tuple[dict[str, Arrays], list[str]]:
    """All splits, and class names from the array `classes` or else numbers."""
    tables = _tables(path)
    images, labels = next((keys for keys in _KEYS if keys[0].format("train") in tables), _KEYS[0])
    splits = {}
    for split in disk.SPLITS:
        x, y = tables.get(images.format(split)), tables.get(labels.format(split))
        if x is not None and y is not None:
            splits[split] = _arrays(f"{path}: {split}", x, y)
    if not {"train", "test"} <= splits.keys():
        raise UserError(
            f"{path} holds {', '.join(tables) or 'nothing'}; expected train_images train_labels test_images "
            "test_labels (and val_*, if any), or x_train y_train x_test y_test"
        )
    return splits, _classes(path, tables.get("classes"), splits)


def _tables(path: Path) -> dict[str, NDArray[np.generic]]:
    if not path.is_file() or not zipfile.is_zipfile(path):
        raise UserError(f"{path} is not an npz file")
    open_archive(path)  # refuses what unpacks to too much
    try:
        with np.load(path, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path} is not an npz file of plain arrays: {reason}") from None


def _arrays(what: str, images: NDArray[np.generic], labels: NDArray[np.generic]) -> Arrays:
    if images.ndim == 3:
        images = images[..., None]
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3):
        raise UserError(
            f"{what} images are {images.dtype} {images.shape}; "
            "expected uint8 (N, H, W), (N, H, W, 1) or (N, H, W, 3)"
        )
    if labels.dtype.kind not in "iu" or labels.size != len(images) or len(images) == 0:
        raise UserError(f"{what} labels are {labels.dtype} {labels.shape} for {len(images)} images")
    return Arrays(images.view(np.uint8), labels.reshape(-1).astype(np.int64))


def _classes(path: Path, names: NDArray[np.generic] | None, splits: Mapping[str, Arrays]) -> list[str]:
    highest = max(int(arrays.labels.max()) for arrays in splits.values())
    classes = [str(name) for name in (range(highest + 1) if names is None else names.reshape(-1))]
    lowest = min(int(arrays.labels.min()) for arrays in splits.values())
    if lowest < 0 or highest >= len(classes):
        raise UserError(f"{path} has labels {lowest}..{highest}; expected 0..{len(classes) - 1}")
    missing = np.flatnonzero(np.bincount(splits["train"].labels, minlength=len(classes)) == 0)
    if missing.size:
        raise UserError(f"{path}: class {classes[missing[0]]!r} has no training image")
    return classes
