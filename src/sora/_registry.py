"""Things found by name: methods, attacks, networks, data sets, probes and metrics share this one class.

An entry comes from a file of this package, which registers itself when it is imported, or from an installed
package that names its module in the entry-point group `sora.methods`, `sora.attacks` and so on.
"""

from __future__ import annotations

import functools
import importlib
import logging
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Generic, Protocol, TypeVar

from sora.errors import UserError, short, unknown


class Entry(Protocol):
    """What every registry entry has."""

    @property
    def name(self) -> str:
        """The name it is found by."""

    @property
    def summary(self) -> str:
        """What it is, in one line."""


E = TypeVar("E", bound=Entry)


class Registry(Generic[E]):
    """Entries of one kind in a fixed order.

    Args:
        kind: What an entry is called in error messages, e.g. `"method"`.
        package: The package whose public modules register themselves when imported, e.g. `"sora.methods"`.
        order: Module names that come first, in this order; the others follow alphabetically.
        group: The entry-point group through which other packages add to it; None: `package`.
    """

    def __init__(
        self, kind: str, package: str, order: Sequence[str] = (), *, group: str | None = None
    ) -> None:
        self.kind, self.package, self.order = kind, package, tuple(order)
        self.group = group or package
        self._entries: dict[str, E] = {}
        self._discovered = False
        self._tried: set[str] = set()  # modules of other packages

    def add(self, entry: E, *, replace: bool = False) -> None:
        """Enter something under its name, which must be free unless `replace` is set."""
        if entry.name in self._entries and not replace:
            raise UserError(f"{self.kind} {entry.name!r} is already registered")
        self._entries[entry.name] = entry

    @contextmanager
    def scratch(self) -> Iterator[None]:
        """Undo at the end of the block whatever was registered inside it."""
        self.discover()
        before = dict(self._entries)
        try:
            yield
        finally:
            self._entries = before

    def names(self) -> list[str]:
        """All names: this package's in its order, then those of installed packages."""
        self.discover()
        self._load_offers()
        return list(self._entries)

    def info(self, name: str) -> E:
        """The entry of that name; an unknown one is an error that suggests the nearest."""
        self.discover()
        if not isinstance(name, str):
            raise UserError(f"{self.kind} is {short(name)}; expected a name: {', '.join(self.names())}")
        if name not in self._entries:
            for point in self._offers():
                if point.name == name:
                    self._load(point)  # raises if the module cannot be imported: the caller asked for it
        if name not in self._entries and name not in self.names():
            raise unknown(self.kind, name, self.names())
        return self._entries[name]

    def __contains__(self, name: str) -> bool:
        """Whether there is such an entry, or a module of another package that should register it."""
        return name in self.names() or any(point.name == name for point in self._offers())

    def __iter__(self) -> Iterator[E]:
        """The entries registered so far, without loading those of other packages."""
        self.discover()
        return iter(list(self._entries.values()))

    def discover(self) -> None:
        """Import this package's own modules, once.

        The first use of the registry does so. A package whose modules can also be imported on their own calls
        it at the end of its `__init__.py`: then the order of entries does not depend on who imports what.
        """
        if self._discovered:
            return
        self._discovered = True
        path = importlib.import_module(self.package).__path__
        modules = sorted(module.name for module in pkgutil.iter_modules(path) if module.name[0] != "_")
        first = [name for name in self.order if name in modules]
        for name in [*first, *(name for name in modules if name not in first)]:
            importlib.import_module(f"{self.package}.{name}")

    def _offers(self) -> list[EntryPoint]:
        return list(_entry_points(self.group, tuple(sys.path)))

    def _load_offers(self) -> None:
        """Import each module of other packages once; one that fails is left out with a warning.

        The name of an entry point need not be that of an entry: a module may register several.
        """
        for point in self._offers():
            if point.value in self._tried:
                continue
            self._tried.add(point.value)
            try:
                self._load(point)
            except UserError as error:
                logging.getLogger(__name__).warning("%s", error)

    def _load(self, point: EntryPoint) -> None:
        """Import a module of another package, which registers its entries."""
        try:
            point.load()
        except Exception as error:  # the other package may raise anything
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise UserError(f"{self.kind} {point.name!r}: cannot import {point.value!r}: {reason}") from error


@functools.cache
def _entry_points(group: str, _: tuple[str, ...]) -> EntryPoints:
    """What installed packages offer, read once per search path: it takes tens of milliseconds."""
    return entry_points(group=group)
