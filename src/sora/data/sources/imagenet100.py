"""`imagenet100`: stored at 256 pixels; training takes random resized crops, testing the central 224.

There is nothing to download: it is built from parquet files (the Hugging Face data set the paper used, with
splits train, validation and test) or from a tree of class folders.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from sora._files import UNPACKED, open_regular, parse_json
from sora.data._archives import unpacked_limit
from sora.data._base import official, register_packed
from sora.data.builder import Builder, in_order
from sora.data.dataset import SPLITS
from sora.data.image_files import SPLIT_NAMES, ImageFile, decode, scan
from sora.errors import UserError, short

CLASSES = 100
_STORED, _TESTED = 256, 224
_READ_HEADER = """
import sys
from pyarrow.parquet import ParquetFile
header = ParquetFile(sys.stdin.buffer).metadata
groups = [header.row_group(number) for number in range(header.num_row_groups)]
columns = [group.column(number) for group in groups for number in range(group.num_columns)]
"""
_ROWS = 8  # rows of a parquet file in memory at once; a column can repeat one value at no cost in the file
_ROW_BYTES = 32  # a row needs at least this much of the file: an image does not get smaller
_CODECS = ("UNCOMPRESSED", "SNAPPY", "GZIP", "LZ4", "LZ4_RAW", "LZ4_HADOOP")
"""Not Brotli and Zstandard, which can unpack a few bytes to gigabytes."""
_shrink = partial(decode, size=_STORED, mode="rgb")


@register_packed("imagenet100", **official("imagenet100"))
def convert(path: Path, builder: Builder) -> None:
    """Decode parquet files if there are any, otherwise class folders."""
    parquet = sorted(path.rglob("*.parquet")) if path.is_dir() else []
    if parquet:
        classes = _convert_parquet(path, parquet, builder)
    else:
        classes, splits = scan(path)
        _check_classes(path, classes)
        for split, files in splits.items():
            builder.stream(split, len(files), in_order(files), _shrink)
    builder.finish(classes, test_size=_TESTED)


def _convert_parquet(path: Path, paths: Sequence[Path], builder: Builder) -> list[str]:
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise UserError("reading parquet files needs pyarrow: install sora-at[parquet]") from None
    splits: dict[str, list[Any]] = {}
    for file in paths:
        split = SPLIT_NAMES.get(file.stem.partition("-")[0], "other")
        splits.setdefault(split, []).append(_open(file, ParquetFile))
    if "test" not in splits and "val" in splits:
        splits["test"] = splits.pop("val")
    if not {"train", "test"} <= splits.keys():
        raise UserError(f"{path}: expected train-*.parquet and test-*.parquet (validation-* is optional)")
    classes = _class_names(splits["train"])
    _check_classes(path, classes)
    for split in filter(splits.__contains__, SPLITS):
        total = sum(file.metadata.num_rows for file in splits[split])
        builder.stream(split, total, partial(_rows, splits[split]), _shrink)
    return classes


def _check_classes(path: Path, classes: Sequence[str]) -> None:
    """Raise before hours of decoding if this is another data set."""
    if len(classes) != CLASSES:
        raise UserError(
            f"{path} has {len(classes)} classes, imagenet100 has {CLASSES}; other sets of class folders are"
            " used as folder:PATH"
        )


def _open(path: Path, reader: Callable[[Any], Any]) -> Any:
    """Open a parquet file; refuse one that declares more than a file of its size can contain."""
    with open_regular(path) as source:  # pyarrow ends the process at some damaged headers
        child = subprocess.run([sys.executable, "-c", _READ_HEADER], stdin=source, capture_output=True)
    if child.returncode < 0:
        raise UserError(f"{path} is not a parquet file: its header is damaged")
    try:
        file = reader(open_regular(path))
        metadata, size = file.metadata, path.stat().st_size
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        columns = [group.column(number) for group in groups for number in range(group.num_columns)]
        codecs = {str(column.compression) for column in columns}
        unpacked = sum(column.total_uncompressed_size for column in columns)
    except UserError:
        raise
    except Exception as error:  # pyarrow has many exceptions
        raise UserError(f"{path} is not a parquet file: {short(str(error))}") from None
    if metadata.num_rows * _ROW_BYTES > size or metadata.num_rows != sum(group.num_rows for group in groups):
        raise UserError(f"{path} refused: it declares {metadata.num_rows:,} rows in {size:,} bytes")
    if not codecs <= set(_CODECS):
        raise UserError(f"{path} is compressed by {', '.join(codecs)}; allowed: {', '.join(_CODECS)}")
    if unpacked > unpacked_limit(path):
        raise UNPACKED.refusal(f"{path}: unpacked to {unpacked:,} bytes, it")
    if not {"image", "label"} <= set(file.schema_arrow.names):
        raise UserError(f"{path} has the columns {short(file.schema_arrow.names)}; expected image and label")
    return file


def _rows(files: Sequence[Any], start: int) -> Iterator[ImageFile]:
    """Yield the images from position `start` on; row groups before it are not read."""
    position = 0
    for file in files:
        for group in range(file.num_row_groups):
            count = file.metadata.row_group(group).num_rows
            if position + count > start:
                batches = file.iter_batches(_ROWS, row_groups=[group], columns=["image", "label"])
                rows = chain.from_iterable(
                    zip(batch["image"], batch["label"], strict=True) for batch in batches
                )
                for row, (image, label) in enumerate(rows, position):
                    if row >= start:
                        yield ImageFile(f"row {row}", image.as_py()["bytes"] or b"", label.as_py())
            position += count


def _class_names(files: Sequence[Any]) -> list[str]:
    """Return the names stored with the labels, else those in the column `text`, else numbers."""
    info = parse_json((files[0].schema_arrow.metadata or {}).get(b"huggingface", b"{}"))
    names = info.get("info", {}).get("features", {}).get("label", {}).get("names")
    if names:
        return [str(name) for name in names]
    by_label: dict[int, str] = {}
    has_text = "text" in files[0].schema_arrow.names
    for file in files:
        for batch in file.iter_batches(_ROWS, columns=["label", "text"] if has_text else ["label"]):
            labels = batch["label"].to_pylist()
            texts = batch["text"].to_pylist() if has_text else labels
            by_label |= {label: str(text) for label, text in zip(labels, texts, strict=True)}
    return [by_label[label] for label in range(len(by_label))]
