"""What several tests of this room do."""

from __future__ import annotations

import dataclasses
import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from sora import data
from sora.data import _sources
from sora.data._source import Remote
from tests.data import formats


def official(
    monkeypatch: pytest.MonkeyPatch, name: str, *files: tuple[str, bytes], **changes: object
) -> None:
    """Let these addresses and contents be the official ones."""
    remotes = tuple(Remote(url, formats.md5(content)) for url, content in files)
    source = dataclasses.replace(_sources.SOURCES[name], files=remotes, **changes)
    monkeypatch.setitem(_sources.SOURCES, name, source)


def pixels(images: data.ImageSet) -> np.ndarray:
    return images.gather(torch.arange(len(images))).permute(0, 2, 3, 1).numpy()


def unpack(content: bytes, folder: Path) -> Path:
    folder.mkdir()
    if zipfile.is_zipfile(io.BytesIO(content)):
        zipfile.ZipFile(io.BytesIO(content)).extractall(folder)
    else:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            archive.extractall(folder, filter="data")
    return folder
