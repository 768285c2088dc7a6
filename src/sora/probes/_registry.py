"""Probes by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from sora._registry import Registry
from sora.probes._base import Probe

P = TypeVar("P", bound=type[Probe[Any]])


@dataclass(frozen=True)
class Info:
    """A registry entry."""

    name: str
    summary: str
    cls: type[Probe[Any]]
    images: int = 0
    """Number of test images it is measured on by default; 0 for a probe that reads logs only."""

    @property
    def needs_model(self) -> bool:
        """Whether it measures a model; otherwise it reads the logs of a run."""
        return self.images > 0


PROBES: Registry[Info] = Registry(
    "probe",
    "sora.probes",
    order=("eps_curve", "landscape", "boundary", "curvature", "fallen", "samples", "traces"),
)


def register(name: str, summary: str, *, images: int = 0) -> Callable[[P], P]:
    """Class decorator that registers a probe; `images` is required for one that measures a model."""

    def add(cls: P) -> P:
        PROBES.add(Info(name, summary, cls, images))
        return cls

    return add


def names() -> list[str]:
    """All probes."""
    return PROBES.names()


def info(name: str) -> Info:
    """The entry of a probe."""
    return PROBES.info(name)


def create(name: str, **options: Any) -> Probe[Any]:
    """The probe of that name; keyword arguments are its options."""
    return info(name).cls(**options)
