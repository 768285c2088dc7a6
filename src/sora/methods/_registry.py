"""Every training method by name, with what a reader wants to know before choosing one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from sora._checks import check_threat
from sora._registry import Registry
from sora.errors import UserError
from sora.methods._base import Method
from sora.methods._records import Info
from sora.methods._targets import Smoothing
from sora.threat import Threat

# The paper's order, which tables keep; a file not listed here comes after these.
ORDER = "benign fgsm free fgsm_rs gradalign nuat zerograd multigrad n_fgsm atas aaer elle sora pgd trades"
# Methods that the paper does not compare with.
MORE = "fgsm_ckpt gat fgsm_mep fgsm_rs_cs fgsm_mep_cs fgsm_uap fgsm_pco liet tdat fgsm_law fgsm_lass"
METHODS: Registry[Info] = Registry("method", "sora.methods", order=(*ORDER.split(), *MORE.split()))
M = TypeVar("M", bound=type[Method])


def register(name: str, summary: str, **facts: Any) -> Callable[[M], M]:
    """Class decorator that registers a method.

    Args:
        name: The name it is created by.
        summary: What it does, in one line.
        facts: Other fields of `Info`.
    """

    def add(cls: M) -> M:
        entry = Info(name, summary, cls, family=name, **facts)
        METHODS.add(entry)
        cls.info = entry
        # A subclass: two methods may share one set of hyper-parameters, but not the prefix in messages.
        cls.hyper_class = type("Hyper", (cls.hyper_class,), {"prefix": f"{name}."})
        return cls

    return add


def preset(name: str, of: str, summary: str, facts: Mapping[str, Any], **hyper: Any) -> None:
    """Another name for a registered method, with some hyper-parameters set.

    Args:
        name: The preset's name.
        of: The method's name.
        summary: What it does, in one line.
        facts: Fields of `Info` that differ from the method's.
        hyper: The hyper-parameters it sets.
    """
    changes = {"name": name, "summary": summary, "preset": hyper, "in_all": True, **facts}
    METHODS.add(replace(METHODS.info(of), **changes))


def info(name: str) -> Info:
    """The registry entry of a method, also of one that an installed package offers as an entry point."""
    return METHODS.info(name)


def names(*, in_all: bool = False) -> list[str]:
    """All names in the paper's order; with `in_all` those that `--methods all` stands for."""
    return [entry.name for entry in METHODS if entry.in_all] if in_all else METHODS.names()


def create(name: str, threat: Threat, /, **options: Any) -> Method:
    """The method of that name; keyword arguments are its hyper-parameters and the fields of `Smoothing`."""
    entry = info(name)
    labels = [field.name for field in fields(Smoothing)]
    smoothing = Smoothing.build({key: value for key, value in options.items() if key in labels})
    hyper = {key: value for key, value in options.items() if key not in labels}
    check_smoothing(entry, smoothing)
    check_threat(threat)
    if threat.norm not in entry.norms:
        raise UserError(f"{name} is not defined for {threat.norm}; allowed: {', '.join(entry.norms)}")
    method = entry.cls(threat, entry.cls.hyper_class.build({**entry.preset, **hyper}))
    if not entry.own_targets:
        method.smoothing = smoothing
    return method


def check_smoothing(entry: Info, smoothing: Smoothing) -> None:
    """Raise if labels would be smoothed twice."""
    if entry.own_targets and smoothing.smoothing:
        raise UserError(
            f"smoothing is {smoothing.smoothing:g}, but {entry.name} has targets of its own"
            f" ({entry.family}.{entry.own_targets}); allowed: 0"
        )
