"""Image files to uint8 arrays, read by Pillow; everything else is refused."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from sora._reading import PIXELS, Limit, open_regular
from sora.errors import UserError

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")  # not EPS and the like, which run programs
_LARGE = 1 << 22
"""Images of more pixels than this are decoded one at a time, whatever the number of threads."""
_one_at_a_time = ThreadPoolExecutor(1)  # not a lock: the memory allocator keeps what each thread has used
_GREY = ("1", "L", "LA", "La")
_DEEP = ("I", "F")


def decode(
    file: Path | bytes, *, size: int | None = None, mode: str | None = None, limit: Limit = PIXELS
) -> NDArray[np.uint8]:
    """One image as an array (H, W, C).

    Args:
        file: Its path or its bytes.
        size: Resize the short side to this (bilinear, antialiased) and take the central square.
        mode: `rgb` or `grey` converts; None keeps 3 channels for colour and 1 for grey.
        limit: The most pixels it may have, checked by its header before anything is decoded.

    Raises:
        UserError: If it is not an image that can be read completely.
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
    except UserError:
        raise
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        # The caller adds the file name: Pillow includes it in some messages and not in others.
        reason = "not an image" if isinstance(error, UnidentifiedImageError) else str(error)
        raise UserError(reason) from None


def _convert(image: Image.Image, wanted: str, size: int | None) -> NDArray[np.uint8]:
    picture = image if image.mode == wanted else image.convert(wanted)
    array = np.asarray(picture if size is None else _square(picture, size))
    return array.reshape(*array.shape[:2], -1)


def _square(image: Image.Image, size: int) -> Image.Image:
    short = min(image.size)
    width, height = (size * side // short for side in image.size)
    if width * height > PIXELS.value:  # a long thin image, whose short side would grow
        raise PIXELS.refusal(f"{image.width}x{image.height} pixels resized to {width}x{height}")
    left, top = round((width - size) / 2), round((height - size) / 2)
    resized = image.resize((width, height), Image.Resampling.BILINEAR)
    return resized.crop((left, top, left + size, top + size))
