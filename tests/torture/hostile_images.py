"""Hostile pictures, and files that only look like pictures."""

import io
import struct
from pathlib import Path

from tests.data import formats
from tests.torture.hostile import Attack, Place, flip_bits, images_folder, no_file, png, reading

SUFFIXES = {
    "PNG": "png",
    "JPEG": "jpg",
    "GIF": "gif",
    "BMP": "bmp",
    "WEBP": "webp",
    "TIFF": "tif",
    "PPM": "ppm",
}
LARGE = 2**31 - 1


def png_bombs(place: Place) -> list[str]:
    """Few bytes, many pixels, just below the limit, several at once."""
    side = place.number(6_000, 8_191)
    bomb = png(side, side, colour=place.rng.choice([0, 3]), lies=False)
    return _read(place, bomb, count=place.number(4, 12))


def damaged_picture(place: Place, damage: str) -> list[str]:
    """A picture of any format that was cut, has flipped bits, or has noise behind its first bytes."""
    kind = place.choose(*SUFFIXES)
    content = _picture(kind)
    if damage == "cut":
        content = content[: place.number(0, len(content) - 1)]
    elif damage == "flipped":
        content = flip_bits(content, place.number(1, 20), place.rng)
    else:
        content = content[:12] + place.rng.randbytes(place.number(0, 4000))
    return _read(place, content, SUFFIXES[kind])


def lying_header(place: Place, kind: str, at: int | None, *layout: object) -> list[str]:
    """A picture whose header has other numbers at some place, packed as `struct` does."""
    whole = bytearray(_picture(kind))
    lie = struct.pack(*layout)  # type: ignore[arg-type]
    at = at if at is not None else place.rng.randrange(8, len(whole) - 4)
    whole[at : at + len(lie)] = lie
    return _read(place, bytes(whole), SUFFIXES[kind])


def postscript(place: Place) -> list[str]:
    text = f"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n({place.canary}) (w) file closefile\nshowpage\n"
    return _read(place, text.encode())


def program(place: Place) -> list[str]:
    return _read(place, f"#!/bin/sh\ntouch {place.canary}\n".encode(), place.choose("png", "jpg", "gif"))


def no_picture(place: Place) -> list[str]:
    root = images_folder(place)
    links = ("/dev/zero", "/dev/urandom", "/etc/passwd", "/dev/tty", "/does/not/exist")
    no_file(place, root / "class0" / "x.png", "fifo", "fifo", "folder", "folder", "loop", *links)
    return reading(place, f"folder:{root}")


def loop_of_folders(place: Place) -> list[str]:
    root = images_folder(place)
    (root / "class0" / "again").symlink_to(root)
    (root / place.choose("c", "train", "test")).symlink_to(root)
    return reading(place, f"folder:{root}")


def strange_names(place: Place) -> list[str]:
    root = images_folder(place)
    names = ("\n.png", "\x1b[2J.png", "x" * 200 + ".png", "\udcff.png", "%s%n.png", "; touch canary.png")
    (root / "class0" / place.choose(*names)).write_bytes(_picture("PNG")[:30])
    return reading(place, f"folder:{root}")


def no_pictures(place: Place) -> list[str]:
    root = place.work / "pictures"
    (root / "a").mkdir(parents=True)
    (root / place.choose("b", "train", ".c", "a/b")).mkdir(exist_ok=True)
    return reading(place, f"folder:{root}")


def _picture(kind: str) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(formats.noise(1, 8, 8, 3)[0]).save(file, kind)
    return file.getvalue()


def _read(place: Place, content: bytes, suffix: str = "png", count: int = 1) -> list[str]:
    root: Path = images_folder(place, content, f"x.{suffix}", count)
    options = place.choose("", "?size=8", "?mode=grey", "?skip-bad=50", "?size=8&mode=rgb&skip-bad=50")
    return reading(place, f"folder:{root}{options}")


def _ppm(width: int, height: int) -> bytes:
    return f"P6 {width} {height} 255\n".encode() + bytes(64)


ATTACKS: dict[str, Attack] = {
    "png with lying size": lambda p: _read(p, png(p.number(9_000, LARGE), p.number(9_000, LARGE))),
    "png bombs": png_bombs,
    "png of one row": lambda p: _read(p, png(p.number(10**6, 6 * 10**7), 1, lies=False)),
    "cut picture": lambda p: damaged_picture(p, "cut"),
    "flipped picture": lambda p: damaged_picture(p, "flipped"),
    "garbage picture": lambda p: damaged_picture(p, "garbage"),
    "ppm with lying size": lambda p: _read(p, _ppm(p.number(10**4, 10**9), p.number(10**4, 10**9)), "ppm"),
    "gif with lying size": lambda p: lying_header(p, "GIF", 6, "<HH", 65_535, p.number(8_000, 65_535)),
    "bmp with lying size": lambda p: lying_header(
        p, "BMP", 18, "<ii", p.number(9_000, LARGE), -p.number(0, LARGE)
    ),
    "tiff with lying tags": lambda p: lying_header(p, "TIFF", None, "<I", p.number(10**6, 2**32 - 1)),
    "postscript as picture": postscript,
    "program as picture": program,
    "no picture": no_picture,
    "no picture again": no_picture,
    "loop of folders": loop_of_folders,
    "strange names": strange_names,
    "no pictures": no_pictures,
}
