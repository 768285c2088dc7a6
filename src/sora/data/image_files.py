"""Image files: found in a tree of class folders, decoded to uint8 arrays by Pillow."""

import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from sora._files import PIXELS, Limit, open_regular
from sora._seeds import mix
from sora.data.splits import SPLIT_SEED, stratified
from sora.errors import UserError

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")  # not EPS and the like, which run programs
SPLIT_NAMES = {"train": "train", "training": "train", "test": "test", "testing": "test"}
SPLIT_NAMES |= dict.fromkeys(("val", "valid", "validation"), "val")
_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
_LARGE = 1 << 22  # images of more pixels than this are decoded one at a time, for any number of threads
_one_at_a_time = ThreadPoolExecutor(1)  # not a lock: the memory allocator keeps what each thread has used
_GREY = ("1", "L", "LA", "La")
_DEEP = ("I", "F")


class ImageFile(NamedTuple):
    """An image to be decoded: its name in messages, its path or bytes, its class."""

    name: str
    file: Path | bytes
    label: int


def decode(
    file: Path | bytes, *, size: int | None = None, mode: str | None = None, limit: Limit = PIXELS
) -> NDArray[np.uint8]:
    """Decode one image to an array (H, W, C); a `UserError` if it cannot be read completely.

    With `size` its short side is resized to this (bilinear, antialiased) and the central square taken. `mode`
    converts to `rgb` or `grey`; None keeps 3 channels for colour and 1 for grey. The header is checked first.
    """
    try:
        with (
            io.BytesIO(file) if isinstance(file, bytes) else open_regular(file) as opened,
            Image.open(opened, formats=FORMATS) as image,  # reads the header alone
        ):
            pixels = image.width * image.height
            if pixels > limit.value:
                raise limit.refusal(f"{image.width}x{image.height} pixels")
            if image.mode.startswith(_DEEP):
                raise UserError("it has more than 8 bits per channel")
            wanted = "L" if mode == "grey" or (mode is None and image.mode in _GREY) else "RGB"
            if pixels > _LARGE:
                return _one_at_a_time.submit(_convert, image, wanted, size).result()
            return _convert(image, wanted, size)
    except UserError:  # is a ValueError
        raise
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        # The caller adds the file name: Pillow includes it in some messages and not in others.
        reason = "not an image" if isinstance(error, UnidentifiedImageError) else str(error)
        raise UserError(reason) from None


def _convert(image: Image.Image, wanted: str, size: int | None) -> NDArray[np.uint8]:
    converted = image if image.mode == wanted else image.convert(wanted)
    array = np.asarray(converted if size is None else _square(converted, size))
    return array.reshape(*array.shape[:2], -1)


def _square(image: Image.Image, size: int) -> Image.Image:
    short = min(image.size)
    width, height = (size * side // short for side in image.size)
    if width * height > PIXELS.value:  # a long thin image, whose short side would grow
        raise PIXELS.refusal(f"{image.width}x{image.height} pixels resized to {width}x{height}")
    left, top = round((width - size) / 2), round((height - size) / 2)
    resized = image.resize((width, height), Image.Resampling.BILINEAR)
    return resized.crop((left, top, left + size, top + size))


def scan(path: Path) -> tuple[list[str], dict[str, list[ImageFile]]]:
    """Return the class names and the images of each split of a tree of class folders."""
    if not path.is_dir():
        raise UserError(f"{path} is not a folder")
    parts = _splits(path)
    if "train" not in parts:
        _refuse_unknown_splits(path)
        classes, everything = _scan_classes(path)
        return classes, _split(everything)
    if "test" not in parts and "val" in parts:
        parts["test"] = parts.pop("val")
    classes, train = _scan_classes(parts["train"])
    if "test" not in parts:
        return classes, _split(train)
    return classes, {"train": train} | {
        split: _scan_classes(parts[split], classes)[1] for split in ("val", "test") if split in parts
    }


def _splits(path: Path) -> dict[str, Path]:
    """Return the folders of the splits; `train` without folders inside, beside others, is a class."""
    folders = _folders(path)
    named = [folder for folder in folders if folder.name.lower() in SPLIT_NAMES]
    if len(named) < len(folders) and not any(_folders(folder) for folder in named):
        return {}
    parts: dict[str, Path] = {}
    for folder in named:
        other = parts.setdefault(SPLIT_NAMES[folder.name.lower()], folder)
        if other is not folder:
            raise UserError(f"{path} contains {other.name} and {folder.name}, which mean the same; keep one")
    return parts


def _scan_classes(path: Path, known: list[str] | None = None) -> tuple[list[str], list[ImageFile]]:
    folders = _folders(path)
    classes = [folder.name for folder in folders] if known is None else known
    if len(classes) < 2:
        raise UserError(f"{path} contains {len(classes)} class folders; at least 2 are needed")
    images = []
    for folder in folders:
        if folder.name not in classes:
            raise UserError(f"{folder} is a class that the training set does not have")
        files = [f for f in folder.rglob("*") if f.suffix.lower() in _SUFFIXES and f.name[0] != "."]
        if not files:
            raise UserError(f"{folder} contains no images; remove the folder or fill it")
        for file in sorted(files, key=lambda file: file.parts):
            if not file.is_file():
                raise UserError(f"{file} is not a regular file; remove it")
            images.append(ImageFile(str(file), file, classes.index(folder.name)))
    return classes, images


def _refuse_unknown_splits(path: Path) -> None:
    """Raise if the folders look like splits: no images of their own, and the same folders inside."""
    folders = _folders(path)
    inside = {tuple(folder.name for folder in _folders(each)) for each in folders}
    direct = any(file.suffix.lower() in _SUFFIXES for each in folders for file in each.iterdir())
    if len(folders) > 1 and len(inside) == 1 and len(next(iter(inside))) > 1 and not direct:
        names, classes = (", ".join(list(part)[:3]) for part in ([f.name for f in folders], *inside))
        advice = "if they are splits, name them train, val and test"
        raise UserError(f"{path}: the folders {names} all contain the folders {classes}; {advice}")


def _folders(path: Path) -> list[Path]:
    """Return the folders in a folder, sorted by name; paths themselves sort differently on Windows."""
    folders = [f for f in path.iterdir() if f.is_dir() and f.name[0] not in "._"]
    return sorted(folders, key=lambda folder: folder.name)


def _split(images: list[ImageFile]) -> dict[str, list[ImageFile]]:
    """Take a fifth of each class for testing, by a constant seed."""
    labels = torch.tensor([image.label for image in images])
    test = set(stratified(labels, len(images) // 5, mix(SPLIT_SEED, len(images))).tolist())
    train = [image for position, image in enumerate(images) if position not in test]
    return {"train": train, "test": [images[position] for position in sorted(test)]}
