"""Data sets as uint8 arrays: where they come from, and how they are split, augmented and batched."""

from sora.data._base import (
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
from sora.data.builder import Arrays, Builder, Picture
from sora.data.dataset import Dataset, ImageSet
from sora.data.integrity import Report, check
from sora.data.loader import Batch, Loader
from sora.data.obtain import get
from sora.data.on_disk import Stored, inventory, stored
from sora.data.splits import Splits, split, stratified

__all__ = [
    "Arrays",
    "Augment",
    "Batch",
    "Builder",
    "DataInfo",
    "Dataset",
    "ImageSet",
    "Loader",
    "Picture",
    "Remote",
    "Report",
    "Splits",
    "Stored",
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
