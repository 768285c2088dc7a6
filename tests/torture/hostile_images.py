"""Hostile pictures, and files that only look like pictures."""

from __future__ import annotations

import io
import os
import struct
from pathlib import Path

from tests.data import formats
from tests.torture.hostile import Attack, Place, images_folder, png, reading

KINDS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
SUFFIX = {
    "PNG": ".png",
    "JPEG": ".jpg",
    "GIF": ".gif",
    "BMP": ".bmp",
    "WEBP": ".webp",
    "TIFF": ".tif",
    "PPM": ".ppm",
}


def png_with_lying_size(place: Place) -> list[str]:
    width, height = place.number(9_000, 2**31 - 1), place.number(9_000, 2**31 - 1)
    return _read(place, png(width, height))


def png_bombs(place: Place) -> list[str]:
    """Few bytes, many pixels, just below the limit, several at once."""
    side = place.number(6_000, 8_191)
    bomb = png(side, side, colour=int(str(place.choose(0, 3))), lies=False)
    return _read(place, bomb, count=place.number(4, 12))


def png_of_one_row(place: Place) -> list[str]:
    wide = png(place.number(10**6, 6 * 10**7), 1, lies=False)
    return _read(place, wide)


def truncated_picture(place: Place) -> list[str]:
    kind = str(place.choose(*KINDS))
    whole = _picture(kind)
    return _read(place, whole[: place.number(0, len(whole) - 1)], SUFFIX[kind])


def flipped_picture(place: Place) -> list[str]:
    kind = str(place.choose(*KINDS))
    content = bytearray(_picture(kind))
    for _ in range(place.number(1, 20)):
        content[place.rng.randrange(len(content))] ^= 1 << place.rng.randrange(8)
    return _read(place, bytes(content), SUFFIX[kind])


def garbage_picture(place: Place) -> list[str]:
    kind = str(place.choose(*KINDS))
    return _read(place, _picture(kind)[:12] + place.rng.randbytes(place.number(0, 4000)), SUFFIX[kind])


def ppm_with_lying_size(place: Place) -> list[str]:
    text = f"P6 {place.number(10_000, 10**9)} {place.number(10_000, 10**9)} 255\n".encode()
    return _read(place, text + bytes(64), ".ppm")


def gif_with_lying_size(place: Place) -> list[str]:
    whole = bytearray(_picture("GIF"))
    whole[6:10] = struct.pack("<HH", 65_535, place.number(8_000, 65_535))
    return _read(place, bytes(whole), ".gif")


def bmp_with_lying_size(place: Place) -> list[str]:
    whole = bytearray(_picture("BMP"))
    whole[18:26] = struct.pack("<ii", place.number(9_000, 2**31 - 1), place.number(-(2**31), 2**31 - 1))
    return _read(place, bytes(whole), ".bmp")


def tiff_with_lying_tags(place: Place) -> list[str]:
    whole = bytearray(_picture("TIFF"))
    at = place.rng.randrange(8, len(whole) - 4)
    whole[at : at + 4] = struct.pack("<I", place.number(10**6, 2**32 - 1))
    return _read(place, bytes(whole), ".tif")


def postscript_as_picture(place: Place) -> list[str]:
    text = f"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n({place.canary}) (w) file closefile\nshowpage\n"
    return _read(place, text.encode(), ".png")


def program_as_picture(place: Place) -> list[str]:
    return _read(
        place, f"#!/bin/sh\ntouch {place.canary}\n".encode(), str(place.choose(".png", ".jpg", ".gif"))
    )


def fifo_as_picture(place: Place) -> list[str]:
    root = images_folder(place)
    os.mkfifo(root / "a" / "x.png")
    return reading(place, f"folder:{root}")


def link_as_picture(place: Place) -> list[str]:
    root = images_folder(place)
    target = str(
        place.choose("/dev/zero", "/dev/urandom", "/etc/passwd", "x.png", "/dev/tty", "/does/not/exist")
    )
    (root / "a" / "x.png").symlink_to(target)
    return reading(place, f"folder:{root}")


def folder_as_picture(place: Place) -> list[str]:
    root = images_folder(place)
    (root / "a" / "x.png").mkdir()
    return reading(place, f"folder:{root}")


def loop_of_folders(place: Place) -> list[str]:
    root = images_folder(place)
    (root / "a" / "again").symlink_to(root)
    (root / str(place.choose("c", "train", "test"))).symlink_to(root)
    return reading(place, f"folder:{root}")


def strange_names(place: Place) -> list[str]:
    root = images_folder(place)
    name = place.choose(
        "\n.png", "\x1b[2J.png", "x" * 200 + ".png", "\udcff.png", "%s%n.png", "; touch canary.png"
    )
    (root / "a" / str(name)).write_bytes(_picture("PNG")[:30])
    return reading(place, f"folder:{root}")


def no_pictures(place: Place) -> list[str]:
    root = place.work / "pictures"
    (root / "a").mkdir(parents=True)
    (root / str(place.choose("b", "train", ".c", "a/b"))).mkdir(exist_ok=True)
    return reading(place, f"folder:{root}")


def _picture(kind: str) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(formats.noise(1, 8, 8, 3)[0]).save(file, kind)
    return file.getvalue()


def _read(place: Place, content: bytes, suffix: str = ".png", count: int = 1) -> list[str]:
    root: Path = images_folder(place, content, f"x{suffix}", count)
    options = place.choose("", "?size=8", "?mode=grey", "?skip-bad=50", "?size=8&mode=rgb&skip-bad=50")
    return reading(place, f"folder:{root}{options}")


ATTACKS: list[Attack] = [
    png_with_lying_size, png_bombs, png_of_one_row, truncated_picture, flipped_picture, garbage_picture,
    ppm_with_lying_size, gif_with_lying_size, bmp_with_lying_size, tiff_with_lying_tags,
    postscript_as_picture,
    program_as_picture, fifo_as_picture, link_as_picture, folder_as_picture, loop_of_folders, strange_names,
    no_pictures,
]  # fmt: skip
