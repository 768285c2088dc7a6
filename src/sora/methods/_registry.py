"""Every training method by name, with what a reader wants to know before choosing one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from typing import Any, TypeVar

from sora.errors import UserError, unknown
from sora.methods._base import Method
from sora.threat import Threat

ENTRY_POINTS = "sora.methods"
M = TypeVar("M", bound=type[Method])


@dataclass(frozen=True)
class Info:
    """A registry entry. Costs are passes over one batch in one step, as measured and as the paper counts."""

    name: str
    summary: str
    cls: type[Method]
    paper: str = ""
    venue: str = ""
    forwards: str = ""
    backwards: str = ""
    paper_cost: str = ""
    memory: str = "-"
    norms: tuple[str, ...] = ("linf",)
    needs: tuple[str, ...] = ()
    family: str = ""  # whose hyper-parameters it takes: a preset's base method, else its own name
    preset: Mapping[str, Any] = field(default_factory=dict)
    in_all: bool = True


_REGISTRY: dict[str, Info] = {}


def register(name: str, summary: str, **entry: Any) -> Callable[[M], M]:
    """Class decorator that enters a method; keyword arguments are the fields of `Info`."""

    def enter(cls: M) -> M:
        _add(Info(name, summary, cls, family=name, **entry))
        # Its own subclass: two methods may share one set of hyper-parameters, but not the name in errors.
        cls.hyper_class = type("Hyper", (cls.hyper_class,), {"prefix": f"{name}."})
        return cls

    return enter


def preset(name: str, of: str, summary: str, entry: Mapping[str, Any], **hyper: Any) -> None:
    """Another name for a registered method with some hyper-parameters set and some `Info` fields changed."""
    changes = {"name": name, "summary": summary, "preset": hyper, "in_all": True, **entry}
    _add(replace(_REGISTRY[of], **changes))


def _add(info: Info) -> None:
    if info.name in _REGISTRY:
        raise UserError(f"method {info.name!r} is registered already, by {_REGISTRY[info.name].cls}")
    _REGISTRY[info.name] = info


def info(name: str) -> Info:
    """The entry of a method, also of one that an installed package offers as an entry point."""
    if name not in _REGISTRY:
        for point in entry_points(group=ENTRY_POINTS):
            if point.name == name:
                point.load()  # importing it runs its `register`
    if name not in _REGISTRY:
        raise unknown("method", name, names())
    return _REGISTRY[name]


def names(*, in_all: bool = False) -> list[str]:
    """All names in the paper's order; with `in_all` those that `--methods all` stands for."""
    found = [name for name, entry in _REGISTRY.items() if entry.in_all or not in_all]
    outside = [point.name for point in entry_points(group=ENTRY_POINTS) if point.name not in found]
    return found if in_all else found + outside


def create(name: str, threat: Threat, /, **hyper: Any) -> Method:
    """The method of that name; keyword arguments are its hyper-parameters."""
    entry = info(name)
    if threat.norm not in entry.norms:
        raise UserError(f"{name} is not defined for {threat.norm}; allowed: {', '.join(entry.norms)}")
    return entry.cls(threat, entry.cls.hyper_class.build({**entry.preset, **hyper}))
