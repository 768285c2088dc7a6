"""`folder:PATH`: your own images, one folder per class.

PATH contains `train`, `test` and optionally `val` folders of class folders, or class folders alone; then a
fifth of each class, always the same, is the test set. Options follow a question mark:
`folder:PATH?size=64&mode=rgb&skip-bad=3`.
"""

import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import parse_qsl

from sora._files import PIXELS, STORED_PIXELS, absolute
from sora.data import _store
from sora.data._base import register
from sora.data.builder import Builder, build, in_order
from sora.data.dataset import Dataset
from sora.data.image_files import decode, scan
from sora.errors import UserError, unknown

_NAMED = 5  # files left out that a warning lists
_OPTIONS = ("size", "mode", "skip-bad")
_HINT = "; ?size=N resizes all, ?mode=rgb or ?mode=grey converts all, ?skip-bad=N leaves out up to N"


@dataclass(frozen=True)
class FolderRequest:
    """What follows `folder:`: a path and how to read its images."""

    path: Path
    size: int | None = None  # side of the square that every image is resized to
    mode: str | None = None  # `rgb` or `grey`: what every image is converted to
    skip_bad: int = 0  # how many unreadable or mismatched images to leave out before it is an error

    @classmethod
    def parse(cls, text: str) -> "FolderRequest":
        """Read PATH?OPTIONS."""
        place, _, query = text.partition("?")
        options = dict(parse_qsl(query, keep_blank_values=True))
        for key, value in options.items():
            if key not in _OPTIONS:
                raise unknown("folder option", key, _OPTIONS)
            if key == "mode" and value not in ("rgb", "grey"):
                raise unknown("mode", value, ("rgb", "grey"))
            if key != "mode" and not (value.isdecimal() and 0 < int(value) <= 1_000_000):
                raise UserError(f"folder option {key}={value} is not a positive integer")
        size = int(options["size"]) if "size" in options else None
        return cls(absolute(place), size, options.get("mode"), int(options.get("skip-bad", 0)))


@register(
    "folder",
    argument="PATH",
    check_argument=FolderRequest.parse,
    summary="your own image files, one folder per class",
)
def load(root: Path, argument: str) -> Dataset:
    """Load the images in a folder; once decoded, they are kept under `root` until the folder changes."""
    request = FolderRequest.parse(argument)
    classes, splits = scan(request.path)

    def fill(builder: Builder) -> None:
        limit = STORED_PIXELS if request.size is None else PIXELS
        read = partial(decode, size=request.size, mode=request.mode, limit=limit)
        for split, files in splits.items():
            builder.stream(split, len(files), in_order(files), read, request.skip_bad, _HINT)
        builder.finish(classes)

    origin = _store.listing(Path(file.name) for files in splits.values() for file in files)
    name = _store.cache_name(request.path, request.size, request.mode, request.skip_bad)
    dataset = _store.open_store(build(root, name, origin, fill), f"folder:{argument}")
    for split, images in dataset.splits.items():
        if images.rows is not None:
            kept = set(images.rows.tolist())
            bad = [file.name for position, file in enumerate(splits[split]) if position not in kept]
            names = ", ".join(bad[:_NAMED]) + (f" and {len(bad) - _NAMED} more" if len(bad) > _NAMED else "")
            where = f"{request.path}: unreadable images left out of {split} ({len(bad)})"
            logging.getLogger(__name__).warning("%s: %s", where, names)
    return dataset
