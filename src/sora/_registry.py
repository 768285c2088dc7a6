"""Things found by name: methods, attacks, models, data sets, probes and metrics share this one class.

An entry comes from a file of this package, which registers itself when it is imported, or from an installed
package that names its module in the entry-point group `sora.methods`, `sora.attacks` and so on.
"""

import functools
import importlib
import logging
import os
import pkgutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoints, entry_points
from typing import Any, Generic, TypeVar

from sora.errors import UserError, short, unknown


@dataclass(frozen=True)
class Entry:
    """What every entry has. A kind of entry adds fields, the first of which is the registered object."""

    name: str  # the name it is found by
    summary: str  # what it is, in one line

    def matches(self, name: str) -> bool:
        """Tell whether `name` refers to this entry."""
        return name == self.name

    @property
    def shown(self) -> tuple[str, ...]:
        """The names to list for it."""
        return (self.name,)

    @property
    def suggested(self) -> tuple[str, ...]:
        """The names to suggest for it after an unknown one."""
        return self.shown


E = TypeVar("E", bound=Entry)
T = TypeVar("T")


class Registry(Generic[E]):
    """Entries of one kind in a fixed order.

    Args:
        kind: What an entry is called in error messages, e.g. `"method"`.
        package: The package whose public modules register themselves when imported, e.g. `"sora.methods"`.
        entry: The class of the entries.
        order: Module names that come first, in this order; the others follow alphabetically.
        group: The entry-point group through which other packages add to it; None: `package`.
        also: What an error message lists as allowed besides the names.
    """

    def __init__(
        self,
        kind: str,
        package: str,
        entry: Callable[..., E],
        order: Sequence[str] = (),
        *,
        group: str | None = None,
        also: tuple[str, ...] = (),
    ) -> None:
        self.kind, self.package, self.entry, self.order, self.also = kind, package, entry, order, also
        self.group = group or package
        self.entries: dict[str, E] = {}  # what was registered so far, by name
        self._discovered = False
        self._tried: set[str] = set()  # modules of other packages

    def register(self, name: str, summary: str, **facts: Any) -> Callable[[T], T]:
        """Return a decorator that registers a class or function; `facts` are other fields of its entry."""

        def decorate(registered: T) -> T:
            self.add(self.entry(name, summary, registered, **facts))
            return registered

        return decorate

    def add(self, entry: E) -> None:
        """Enter something under its name, which must be free."""
        if entry.name in self.entries:
            raise UserError(f"{self.kind} {entry.name!r} is already registered")
        self.entries[entry.name] = entry

    def names(self) -> list[str]:
        """Return all names: this package's in its order, then those of installed packages."""
        self._load_all()
        return [name for entry in self.entries.values() for name in entry.shown]

    def info(self, name: str) -> E:
        """Return the entry of that name; an unknown one is an error that suggests the nearest."""
        self.discover()
        if not isinstance(name, str):
            raise UserError(f"{self.kind} is {short(name)}; expected a name: {', '.join(self.names())}")
        found = self._find(name)
        if found is None:
            for point in self._points():
                if point.name == name.partition(":")[0]:
                    # Raises if it cannot be imported: the caller asked for it.
                    _import(self.kind, point.name, point.value, point.load)
            self._load_all()
            found = self._find(name)
        if found is None:
            raise self.unknown(name)
        return found

    def unknown(self, name: str) -> UserError:
        """Return the error for a name that does not exist, with the nearest one that does."""
        known = (name for entry in self.entries.values() for name in entry.suggested)
        return unknown(self.kind, name, [*known, *self.also])

    def discover(self) -> None:
        """Import this package's own modules, once: at the end of its `__init__.py`, for a fixed order."""
        if self._discovered:
            return
        self._discovered = True
        path = getattr(importlib.import_module(self.package), "__path__", ())  # a single file has none
        modules = sorted(module.name for module in pkgutil.iter_modules(path) if module.name[0] != "_")
        first = [name for name in self.order if name in modules]
        for name in [*first, *(name for name in modules if name not in first)]:
            importlib.import_module(f"{self.package}.{name}")

    def _find(self, name: str) -> E | None:
        return next((entry for entry in self.entries.values() if entry.matches(name)), None)

    def _load_all(self) -> None:
        """Import the modules of other packages, each once; one that fails is left out with a warning."""
        self.discover()
        for point in self._points():
            if point.value in self._tried:
                continue
            self._tried.add(point.value)
            try:
                _import(self.kind, point.name, point.value, point.load)
            except UserError as error:
                logging.getLogger(__name__).warning("%s", error)

    def _points(self) -> EntryPoints:
        return _entry_points(self.group, tuple(sys.path))


@functools.cache
def _entry_points(group: str, _: tuple[str, ...]) -> EntryPoints:
    """Return what installed packages offer, read once per search path: it takes tens of milliseconds."""
    return entry_points(group=group)


def imported(kind: str, name: str) -> Callable[..., Any]:
    """Return the function or class that `package.module:function` names; importing it runs its code."""
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise UserError(f"{kind} {name!r} is not of the form package.module:function")
    here = os.getcwd()
    if here not in sys.path:  # `python -m` adds it; an installed command does not
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    module = _import(kind, name, module_name, lambda: importlib.import_module(module_name))
    function = getattr(module, function_name, None)
    if not callable(function):
        raise UserError(f"{kind} {name!r}: {module_name!r} has no function {function_name!r}")
    return function  # type: ignore[no-any-return]


def _import(kind: str, name: str, module: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except Exception as error:  # code of somebody else may raise anything
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise UserError(f"{kind} {name!r}: cannot import {module!r}: {reason}") from error
