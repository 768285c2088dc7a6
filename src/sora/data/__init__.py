"""Data sets as uint8 arrays: where they come from, and how they are split, augmented and batched."""

from sora.data._base import (
    DATA,
    DataInfo,
    Remote,
    check_name,
    data_root,
    info,
    load,
    names,
    register,
    register_packed,
)
from sora.data.augment import Augment, Transform
from sora.data.builder import Arrays, Builder
from sora.data.dataset import Dataset, ImageSet
from sora.data.image_files import ImageFile
from sora.data.inputs import ExampleSet, GivenData, Stream
from sora.data.inspection import Report, StoredDataset, check, inventory, stored
from sora.data.loader import Batch, Loader
from sora.data.obtain import get
from sora.data.splits import Splits, split, stratified

__all__ = [
    "Arrays",
    "Augment",
    "Batch",
    "Builder",
    "DataInfo",
    "Dataset",
    "ExampleSet",
    "GivenData",
    "ImageFile",
    "ImageSet",
    "Loader",
    "Remote",
    "Report",
    "Splits",
    "StoredDataset",
    "Stream",
    "Transform",
    "check",
    "check_name",
    "data_root",
    "get",
    "info",
    "inventory",
    "load",
    "names",
    "register",
    "register_packed",
    "split",
    "stored",
    "stratified",
]

DATA.discover()  # the order of names must not depend on which source is imported first
