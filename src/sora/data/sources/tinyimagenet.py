"""`tinyimagenet`: 200 classes at 64 pixels; its labelled validation split is the test set here."""

import re
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path

from sora.data._archives import Files, Flat
from sora.data._base import official, register_packed
from sora.data.builder import Builder
from sora.data.image_files import ImageFile, decode
from sora.errors import UserError

_TRAIN = re.compile(r"(?:^|/)train/(n\d{8})/images/[^/]+\.JPEG$")
_TEST = re.compile(r"(?:^|/)val/images/([^/]+\.JPEG)$")


@register_packed("tinyimagenet", **official("tinyimagenet"))
def convert(path: Path, builder: Builder) -> None:
    """Decode the JPEGs of the official zip file or its unpacked folder."""
    texts = Flat(path)
    archive = texts.archive
    classes = sorted(texts["wnids.txt"].decode().split())
    number = {wnid: index for index, wnid in enumerate(classes)}
    # A line of the annotations: file name, WordNet id, and a box we do not use.
    answers = dict(line.split("\t")[:2] for line in texts["val_annotations.txt"].decode().splitlines())
    train = {name: match[1] for name in archive if (match := _TRAIN.search(name))}
    test = {name: answers.get(match[1], "") for name in archive if (match := _TEST.search(name))}
    for split, labels in (("train", train), ("test", test)):
        if not labels or not set(labels.values()) <= set(classes):
            raise UserError(f"{path} is not TinyImageNet: its {split} images have no class in wnids.txt")
        images = partial(_images, archive, {name: number[wnid] for name, wnid in sorted(labels.items())})
        builder.stream(split, len(labels), images, partial(decode, mode="rgb"))
    names = dict(line.split("\t")[:2] for line in texts["words.txt"].decode().splitlines())
    builder.finish([names.get(wnid, wnid).split(",")[0] for wnid in classes])


def _images(archive: Files, labels: Mapping[str, int], start: int) -> Iterator[ImageFile]:
    for name, label in islice(labels.items(), start, None):
        yield ImageFile(name, archive[name](), label)
