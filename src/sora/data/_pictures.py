"""Image files to uint8 arrays, read by Pillow; everything else is refused."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from sora.errors import UserError

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")  # not EPS and the like, which run programs
MAX_PIXELS = 1 << 26
_GREY = ("1", "L", "LA", "La")
_DEEP = ("I", "F")


def decode(file: Path | bytes, *, size: int | None = None, mode: str | None = None) -> NDArray[np.uint8]:
    """One image as an array (H, W, C).

    Args:
        file: Its path or its bytes.
        size: Resize the short side to this (bilinear, antialiased) and take the central square.
        mode: `rgb` or `grey` converts; None keeps 3 channels for colour and 1 for grey.

    Raises:
        UserError: If it is not an image that can be read completely.
    """
    try:
        with Image.open(io.BytesIO(file) if isinstance(file, bytes) else file, formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise UserError(f"{image.width}x{image.height} pixels exceed the limit")
            if image.mode.startswith(_DEEP):
                raise UserError("it has more than 8 bits per channel")
            grey = mode == "grey" or (mode is None and image.mode in _GREY)
            picture = image.convert("L" if grey else "RGB")
    except UserError:
        raise
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        # The caller adds the file name: Pillow includes it in some messages and not in others.
        reason = "not an image" if isinstance(error, UnidentifiedImageError) else str(error)
        raise UserError(reason) from None
    array = np.asarray(picture if size is None else _square(picture, size))
    return array.reshape(*array.shape[:2], -1)


def _square(image: Image.Image, size: int) -> Image.Image:
    short = min(image.size)
    width, height = (size * side // short for side in image.size)
    left, top = round((width - size) / 2), round((height - size) / 2)
    resized = image.resize((width, height), Image.Resampling.BILINEAR)
    return resized.crop((left, top, left + size, top + size))
