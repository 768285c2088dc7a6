"""Data sets as uint8 arrays: where they come from, how they are cut, augmented and batched."""

from sora.data._check import Report, check
from sora.data._inventory import Entry, about, entry, inventory
from sora.data._sources import check_name, data_root, get, load, names
from sora.data._store import Dataset, ImageSet, Splits, split
from sora.data.augment import Augment, Transform
from sora.data.loader import Batch, Loader

__all__ = [
    "Augment",
    "Batch",
    "Dataset",
    "Entry",
    "ImageSet",
    "Loader",
    "Report",
    "Splits",
    "Transform",
    "about",
    "check",
    "check_name",
    "data_root",
    "entry",
    "get",
    "inventory",
    "load",
    "names",
    "split",
]
